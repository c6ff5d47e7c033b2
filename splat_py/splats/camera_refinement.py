"""Poses and intrinsics learnt beside the scene (slang/splat/camera_correction.slang, kernels/camera_refinement.slang)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.transform import Rotation

from splat_py.fit.adam import Adam
from splat_py.gpu.arrays import Array
from splat_py.gpu.device import Device
from splat_py.gpu.kernels import Recorder
from splat_py.gpu.sources import constant
from splat_py.scene.camera import Camera, Distortion
from splat_py.scene.dataset import Dataset
from splat_py.splats.data import Cameras
from splat_py.splats.learnt import Learnt

POSES, INTRINSICS = "poses", "intrinsics"
POSE_CORRECTION, LENS_CORRECTION = (
    int(constant("splat/camera_correction", name)) for name in ("POSE_CORRECTION", "LENS_CORRECTION")
)
# A photograph has its turn once an epoch, and a run may have twenty of them: means are of few gradients.
_ADAM, _SHARED_ADAM = Adam(epsilon=1e-15, beta1=0.5, beta2=0.9), Adam(epsilon=1e-15)
# Learning rates at first, radians and shares; of translations times the scene's scale. They fall to nothing, quadratically:
# scenes are sharp, and gradients good, late.
_ROTATION_LR, _TRANSLATION_LR, _FOCAL_LR, _PRINCIPAL_LR, _LENS_LR = 5e-3, 5e-3, 5e-4, 2e-4, 1e-4
# Of a run: before, a longer focal length is only a way to close the gaps between the first Gaussians.
_INTRINSICS_START = 0.15


class CameraRefinement:
    """Corrections of each photograph's pose, and of the focal lengths, the principal point and the lens that all share.

    Args:
        photographs: that are trained on.
        scene_scale: world units.
        state: of a checkpoint, with "poses", [photographs, 6], "intrinsics", [7], and their moments.
    """

    def __init__(
        self, device: Device, photographs: int, scene_scale: float, state: Mapping[str, NDArray] | None = None
    ) -> None:
        self._scene_scale = scene_scale
        self._poses = Learnt(device, POSES, np.zeros((photographs, POSE_CORRECTION), np.float32), state)
        self._shared = Learnt(device, INTRINSICS, np.zeros(LENS_CORRECTION, np.float32), state)

    def state(self) -> dict[str, NDArray[np.float32]]:
        """A copy of everything, on the host. Nothing that writes it may still be running."""
        return self._poses.state() | self._shared.state()

    def record(self, recorder: Recorder, photograph: int, cameras: Cameras) -> Cameras:
        """The camera of a photograph as it is known now; `cameras` as the capture has it."""
        recorder.stage("cameras")
        lenses = None if cameras.lenses is None else recorder.scratch(cameras.lenses.shape)
        refined = replace(
            cameras,
            viewmats=recorder.scratch(cameras.viewmats.shape),
            Ks=recorder.scratch(cameras.Ks.shape),
            lenses=lenses,
        )
        recorder.dispatch(
            "camera_refinement",
            "refineCamera",
            (1, 1, 1),
            {"photograph": photograph, "width": cameras.width, "height": cameras.height},
            {
                **self._inputs(cameras),
                "refinedViewmats": refined.viewmats,
                "refinedKs": refined.Ks,
                "refinedLenses": refined.lenses,
            },
            **_constants(cameras),
        )
        return refined

    def record_update(
        self,
        recorder: Recorder,
        photograph: int,
        cameras: Cameras,
        v_cameras: tuple[Array, Array],
        status: Array,
        *,
        epoch: int,
        step: int,
        progress: float,
    ) -> None:
        """One step of Adam.

        Args:
            cameras: as the capture has it.
            v_cameras: gradient rows of the refined one, [1, CAMERA_ROW or more], of its projection and of its shading.
            epoch: how often the photograph has had its turn before; `step`, how often any has.
            progress: how much of the run is done, 0 to 1.
        """
        recorder.stage("cameras")
        decay = (1 - progress) ** 2
        of_all = decay if progress >= _INTRINSICS_START else 0.0
        shared = {f"intrinsic{name[0].upper()}{name[1:]}": value for name, value in _SHARED_ADAM.uniforms(step).items()}
        del shared["intrinsicEpsilon"]
        of_poses, of_shared = self._poses.moments(), self._shared.moments()
        recorder.dispatch(
            "camera_refinement",
            "updateCamera",
            (1, 1, 1),
            {
                "photograph": photograph,
                "width": cameras.width,
                "height": cameras.height,
                "rotationRate": _ROTATION_LR * decay,
                "translationRate": _TRANSLATION_LR * self._scene_scale * decay,
                "focalRate": _FOCAL_LR * of_all,
                "principalRate": _PRINCIPAL_LR * of_all,
                "lensRate": _LENS_LR * of_all,
                **_ADAM.uniforms(epoch),
                **shared,
            },
            {
                **self._inputs(cameras),
                "vProjection": v_cameras[0],
                "vShading": v_cameras[1],
                "status": status,
                **of_poses,
                "intrinsicFirstMoments": of_shared["firstMoments"],
                "intrinsicSecondMoments": of_shared["secondMoments"],
            },
            **_constants(cameras),
        )

    def _inputs(self, cameras: Cameras) -> dict[str, Array | None]:
        of_capture = {"viewmats": cameras.viewmats, "Ks": cameras.Ks, "lenses": cameras.lenses}
        return of_capture | {"poses": self._poses.values, "intrinsics": self._shared.values}


def _constants(cameras: Cameras) -> dict[str, bool]:
    return {} if cameras.lenses is None else {"WITH_LENS": True}


def refined_dataset(dataset: Dataset, state: Mapping[str, NDArray]) -> Dataset:
    """A dataset with the cameras of a state: held-out views keep their poses, which nothing has corrected."""
    views = list(dataset.views)
    poses = np.zeros((len(views), POSE_CORRECTION))
    poses[dataset.train] = state[POSES]
    for index, view in enumerate(views):
        views[index] = replace(view, camera=corrected(view.camera, poses[index], state[INTRINSICS]))
    return replace(dataset, views=views, _images=dataset._images)


def corrected(camera: Camera, pose: NDArray, shared: NDArray) -> Camera:
    """A camera with the corrections of its pose [6] and of what photographs share [7] (`correctCamera`)."""
    pose, shared = np.asarray(pose, np.float64), np.asarray(shared, np.float64)
    correction = np.eye(4)
    correction[:3, :3], correction[:3, 3] = Rotation.from_rotvec(pose[:3]).as_matrix(), pose[3:]
    K = camera.K.copy()
    K[(0, 1), (0, 1)] *= np.exp(shared[0])
    K[:2, 2] += shared[1:3] * (camera.width, camera.height)
    lens = camera.distortion
    if lens is not None:
        k = list(lens.coefficients)
        k[0], k[1] = k[0] + float(shared[3]), k[1] + float(shared[4])
        if not lens.fisheye:
            k[2], k[3] = k[2] + float(shared[5]), k[3] + float(shared[6])
        lens = Distortion(tuple(k), lens.fisheye)
    return replace(camera, viewmat=correction @ camera.viewmat, K=K, distortion=lens)
