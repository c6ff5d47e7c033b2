// Browsers start no workers for pages that are files: there the search, which is one, runs in a hidden frame.
if (location.protocol === "file:") {
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      const frame = document.createElement("iframe");
      frame.hidden = true;
      document.body.appendChild(frame);
      this.inside = frame.contentWindow;
      this.inside.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }));
      this.inside.importScripts = async () => {}; // of other languages
      const script = this.inside.document.createElement("script");
      this.ready = new Promise((resolve) => script.addEventListener("load", resolve));
      script.src = url;
      this.inside.document.body.appendChild(script);
    }

    async postMessage(data) {
      await this.ready;
      this.inside.dispatchEvent(new MessageEvent("message", { data }));
    }
  };
}
