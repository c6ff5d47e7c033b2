"""Blobs → picture, and back, in one kernel on CPU drivers (kernels/cpu/blob_group.slang): a wave finds, sorts and blends the
blobs of a square of tiles."""

from __future__ import annotations

import numpy as np

from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder
from splat_py.gpu.persistent_groups import persistent_groups
from splat_py.gpu.sources import constant
from splat_py.image.derivatives import WithoutLists

_ROW = constant("kernels/cpu/blob_rows", "BLOB_ROW")
_V_ROW = constant("kernels/cpu/blob_blending", "V_ROW")
_LISTS = constant("kernels/cpu/blob_group", "LISTS")


class CpuGroupRasterizer(WithoutLists):
    """Every square tests every blob; no list outlasts its square. Arguments as for `TileRasterizer`."""

    def __init__(self, device: Device, blobs: int, width: int, height: int, native_atomics: bool | None = None) -> None:
        self._device, self._blobs, self._width, self._height = device, blobs, width, height
        self._native = device.native_float_atomics if native_atomics is None else native_atomics
        self._groups = persistent_groups()
        # A queue more than there are workgroups (kernels/cpu/work_queue.slang).
        self._queues = self._groups + 1
        # The power of two that holds all blobs.
        self._capacity = 1 << (blobs - 1).bit_length()
        empty = device.memory.empty
        self._keys = empty((self._queues, self._capacity), np.uint32, by_address=True)
        self._lists = empty((self._queues, _LISTS, blobs), np.uint32, by_address=True)
        self._rows = empty((self._queues, blobs, _ROW), by_address=True)
        self._v_rows = empty((self._queues, blobs, _V_ROW), by_address=True)

    def record_render(self, recorder: Recorder, parameters: Array, image: Array) -> None:
        """See `Rasterizer`."""
        recorder.stage("render")
        self._dispatch(recorder, "renderSquares", parameters, {"image": image}, 1.0)

    def _record_derivatives(
        self, recorder: Recorder, parameters: Array, target: Array, v_parameters: Array, weight: float, linear: bool
    ) -> None:
        recorder.stage("derivatives")
        recorder.clear(v_parameters)
        buffers = {"targetPicture": target, "vParameters": v_parameters, "vParameterBits": v_parameters.bits}
        constants = {"NATIVE_ATOMICS": self._native, "LINEAR": linear}
        self._dispatch(recorder, "differentiateSquares", parameters, buffers, weight, **constants)

    def _dispatch(
        self, recorder: Recorder, entry: str, parameters: Array, buffers: dict[str, Array], weight: float, **constants: int
    ) -> None:
        queues = recorder.scratch((self._queues,), np.uint32)
        recorder.clear(queues)
        uniforms = {
            "blobs": self._blobs,
            "width": self._width,
            "height": self._height,
            "weight": weight,
            "capacity": self._capacity,
        }
        buffers = buffers | {
            "rawBlobs": parameters,
            "squareBlobs": self._keys,
            "tileIds": self._lists,
            "blobRows": self._rows,
            "blobQuads": self._rows,
            "vRows": self._v_rows,
            "vPairs": self._v_rows,
            "queues": queues,
        }
        recorder.dispatch("cpu/blob_group", entry, (self._groups, 1, 1), uniforms, buffers, QUEUES=self._queues, **constants)
