"""The device, its memory and its kernels: everything between Python and a GPU."""
