"""The 3D smoothing filter of Mip-Splatting (Yu et al. 2024, section 4.1) in training: kernels/filter_3d.slang."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace

import numpy as np

from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder, UserType, linear_groups
from splat_py.splats.data import Cameras, GaussianArrays
from splat_py.splats.parameters import State

# In a checkpoint: standard deviations [N], world units; 0 of Gaussians that no camera has seen.
FILTER = "filter_3d"
# Gaussians move: filters are found anew every so many steps.
_EVERY = 100


class Filter3D:
    """The filters of Gaussians under training, and these Gaussians filtered, activated.

    Args:
        cameras: those that Gaussians are seen by, of one image each, and their types in slang/splat, or a user's own.
        near: depth of the near plane, world units.
        state: of a checkpoint.
    """

    def __init__(
        self,
        device: Device,
        cameras: Callable[[], Iterable[tuple[Cameras, str | UserType]]],
        near: float,
        state: State | None = None,
    ) -> None:
        self._device, self._cameras, self._near = device, cameras, near
        self._raw: GaussianArrays | None = None
        self._smooth: GaussianArrays | None = None
        self._filters = device.memory.array(state[FILTER]) if state and FILTER in state else None

    def record(self, recorder: Recorder, raw: GaussianArrays, step: int, status: Array) -> GaussianArrays:
        """The Gaussians filtered, before a step; their filters are found anew where that is due, or they are other Gaussians.

        Args:
            raw: as the optimiser stores them.
            status: filters stay as they are where the step does not count (kernels/status.slang).
        """
        self._find(recorder, raw, status, step % _EVERY == 0)
        assert self._filters is not None and self._smooth is not None
        buffers = {"scales": self._smooth.scales, "opacities": self._smooth.opacities}
        self._dispatch(recorder, "smoothForward", raw, buffers)
        return self._smooth

    def record_backward(self, recorder: Recorder, v_gaussians: GaussianArrays) -> None:
        """Gradients of what `record` has returned → gradients of `raw`, in place."""
        recorder.stage("3D filter")
        assert self._raw is not None
        self._dispatch(
            recorder, "smoothBackward", self._raw, {"vScales": v_gaussians.scales, "vOpacities": v_gaussians.opacities}
        )

    def state(self, raw: GaussianArrays) -> State:
        """For a checkpoint. No step may still be running."""
        recorder = self._device.record()
        self._find(recorder, raw, self._device.memory.array(np.zeros(1, np.uint32)))
        recorder.submit()
        assert self._filters is not None
        return {FILTER: self._filters.numpy().copy()}

    def _find(self, recorder: Recorder, raw: GaussianArrays, status: Array, due: bool = False) -> None:
        recorder.stage("3D filter")
        if self._raw is None or self._raw.means is not raw.means:
            empty = self._device.memory.empty
            # Of a checkpoint they are there.
            due = due or self._raw is not None or self._filters is None
            self._filters = self._filters if self._raw is None and self._filters is not None else empty(raw.count)
            self._smooth = replace(raw, scales=empty(raw.scales.shape), opacities=empty(raw.opacities.shape))
            self._raw = raw
        if due:
            for index, (camera, model) in enumerate(self._cameras()):
                constants: dict[str, bool | str | UserType] = {} if camera.lenses is None else {"WITH_LENS": True}
                if model != "Pinhole":
                    constants["CameraModel"] = model
                uniforms = {"width": camera.width, "height": camera.height, "near": self._near, "first": int(index == 0)}
                of_camera = {"viewmats": camera.viewmats, "Ks": camera.Ks, "lenses": camera.lenses}
                buffers = {"status": status, "means": raw.means, **of_camera}
                self._dispatch(recorder, "findFilters", raw, buffers, uniforms, constants)

    def _dispatch(
        self,
        recorder: Recorder,
        entry: str,
        raw: GaussianArrays,
        buffers: Mapping[str, Array | None],
        uniforms: Mapping[str, int | float] | None = None,
        constants: Mapping[str, bool | str | UserType] | None = None,
    ) -> None:
        recorder.dispatch(
            "filter_3d",
            entry,
            linear_groups(raw.count),
            {"gaussians": raw.count, **(uniforms or {})},
            {"filters": self._filters, "logScales": raw.scales, "logits": raw.opacities, **buffers},
            **(constants or {}),
        )


def filtered(state: State) -> State:
    """The state's Gaussians with their filters, if it has any, in scales and opacities: as any viewer shows them."""
    if FILTER not in state:
        return state
    log_scales, logits, filters = (state[name].astype(np.float64) for name in ("log_scales", "logit_opacities", FILTER))
    with np.errstate(divide="ignore"):
        grown = np.logaddexp(2 * log_scales, 2 * np.log(filters)[:, None]) / 2
    log_opacities = np.minimum(-np.logaddexp(0, -logits) + (log_scales - grown).sum(1), -1e-12)
    logits = log_opacities - np.log(-np.expm1(log_opacities))
    return {**state, "log_scales": grown.astype(np.float32), "logit_opacities": logits.astype(np.float32)}
