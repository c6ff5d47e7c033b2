"""Checks of types that kernels are linked with: derivatives against finite differences, the promises of interfaces, and
compilation for other devices."""

import re
from collections.abc import Callable, Iterable, Mapping
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

from splat_py.base.errors import SplatError
from splat_py.base.fields import Range, require_number, shown
from splat_py.gpu.emission import emit
from splat_py.gpu.kernels import UserType
from splat_py.gpu.messages import first_error
from splat_py.gpu.slang_compiler import CompilerError, Target
from splat_py.gpu.sources import constant, shader_folder
from splat_py.shaders.declarations import SPLAT_INTERFACES, fields_of, scalar_left_of_vector, takes_of, types_of
from splat_py.shaders.field_functions import FieldQueries, first_values
from splat_py.shaders.finite_differences import KINKS, Inputs, compare, place_of, worst_of
from splat_py.shaders.functions import ShaderFunction, ShaderModule, gradients
from splat_py.shaders.loading import built_in, shape_of, source, user_type, with_numbers

_SAMPLES = 2000
# Languages that types must compile for.
_LANGUAGES: dict[str, Target] = {"Metal": "metal", "WebGPU": "wgsl"}
_ALPHA_MIN = constant("splat/blending", "ALPHA_MIN")
# Numbers of lens coefficients, by field of `Camera`.
_COEFFICIENTS = {"radial": 3, "radialMore": 3, "tangential": 2, "thinPrism": 4}
# Numbers of features and weights of built-in colours; and of features for colours that accept any number.
_COLORS = {"SphericalHarmonics": (12, 0), "HarmonicSum": (12, 0), "ColorNetwork": (6, 60 + 19)}
_ANY_FEATURES = 9
# Places where a radiance field is evaluated, and parameters of it whose derivatives are compared.
_PLACES, _NUMBERS = 400, 200


def check(kind: ShaderModule | UserType | str, **ranges: Range) -> None:
    """Check the type in `kind` that implements IFalloff, IFalloff2D, IFalloff3D, ISplatColor, ICameraModel, IColor, IPixelLoss
    or IFieldFunction, or one type for each of several interfaces.

    At random places, values must be finite and derivatives must agree with finite differences. A falloff must lie from 0 to 1,
    and end at its `sigmaMax`, in all directions; a splat's colour must be finite also far outside of it. A camera is checked
    where its `isInDomain` is true, a radiance field with its initial parameters. Then the kernels that are linked with the type
    are compiled for Metal and WebGPU.

    Args:
        kind: from `source` or `load`, or the name of a built-in type.
        ranges: lowest and highest value by name, for the fields of a splat's type, or for a camera's lens coefficients in the
            order of `Camera`, where those without a range are 0.

    Raises:
        SplatError: a check fails; the message says what is wrong and where, or has the line of the source.
    """
    if not isinstance(kind, str | ShaderModule | UserType):
        wanted = "what splat_py.shaders.source or load returns, or a built-in name"
        raise SplatError(f"kind is a {type(kind).__name__}; give {wanted}")
    for name, limits in ranges.items():
        if not isinstance(limits, tuple | list) or len(limits) != 2:
            raise SplatError(f"{name} is {shown(limits)}; give its lowest and its highest value, such as {name}=(0.5, 2.0)")
        require_number(**{f"the range of {name}": limits[0], f"the end of the range of {name}": limits[1]})
        if limits[0] > limits[1]:
            raise SplatError(f"{name} is {limits}; give its lowest value first")
    kinds = {name: found for name in _CHECKS if (found := _named(kind, name)) is not None}
    if not kinds:
        name = kind if isinstance(kind, str) else "the source" if kind.name.startswith("source_") else kind.name
        raise SplatError(f"{name} has no type that implements {', '.join(_CHECKS)}; declare one: struct Mine : IFalloff")
    fields = {interface: _fields_of(kinds[interface][1]) for interface in SPLAT_INTERFACES if interface in kinds}
    unknown = [] if "ICameraModel" in kinds else sorted(set(ranges).difference(*fields.values()))
    for interface, (module, linked) in kinds.items():
        (check_type, kernels), name = _CHECKS[interface], linked if isinstance(linked, str) else linked.name
        text = "" if isinstance(linked, str) else linked.text
        lost = scalar_left_of_vector(text)
        if lost:
            raise SplatError(
                f"{name} has {lost}, a scalar left of a vector, whose gradient Slang may lose; put the vector first"
            )
        missing = [field for field in fields.get(interface, ()) if field not in ranges]
        if missing or unknown:
            wrong = f"{missing[0]}, which has no range" if missing else f"no {unknown[0]}, which has a range"
            raise SplatError(f"{name} has {wrong}; give one for each field, such as beta=(0.5, 2.0)")
        given = ranges
        if interface in fields:
            given = {field: ranges[field] for field in fields[interface]}
            if isinstance(linked, UserType):
                (linked,) = with_numbers(tuple(given), linked)
        try:
            constants = check_type(module, linked, given) | ({"EXTRAS": len(given)} if fields.get(interface) else {})
        # SlangPy's own errors, for code that the compiler refuses only when a function is called.
        except (RuntimeError, ValueError) as error:
            if isinstance(error, SplatError):
                raise
            raise SplatError(f"{name} cannot be compiled: {first_error(str(error), text)}") from error
        for (language, target), kernel in product(_LANGUAGES.items(), kernels):
            try:
                emit(target, *kernel, constants)
            except CompilerError as error:
                # Messages about a whole function have no line.
                what = re.sub(r"^[a-z ]*error\[\w+\]: ", "", first_error(error.messages, text))
                raise SplatError(f"{name} cannot be compiled for {language}, in {kernel[1]}: {what}") from error


Module = ShaderModule | str


def _named(kind: ShaderModule | UserType | str, interface: str) -> tuple[Module, str | UserType] | None:
    """Find a type that implements an interface: as an argument of generics, and as a type to link kernels with."""
    if isinstance(kind, str):
        files = (shader_folder() / "splat").glob("*.slang")
        declared = re.compile(rf"\bstruct {re.escape(kind)} : I(Stored)?{interface[1:]}\b")
        return (kind, kind) if any(declared.search(file.read_text("utf-8")) for file in files) else None
    if not types_of(kind.text, interface):
        return None
    module = source(kind.text) if isinstance(kind, UserType) else kind
    return module, user_type(module, interface)


def _fields_of(linked: str | UserType) -> list[str]:
    """The fields of a splat's type, own or built in."""
    if isinstance(linked, str):
        return fields_of(built_in("falloff").text, linked)
    return fields_of(linked.text, linked.name)


def _check_falloff(module: Module, linked: str | UserType, ranges: Mapping[str, Range]) -> dict[str, Any]:
    value_of, furthest_of = built_in("falloff").falloffOf[module], built_in("falloff").sigmaMaxThrough[module]
    own, sigma = _check_values(lambda sigma, own, rng: value_of(sigma, own), furthest_of, ranges)
    _check_derivatives("value", value_of, {"sigma": sigma, "": own}, limits={"sigma": (0.0, np.inf)})
    _check_at_mean(value_of, np.zeros_like(sigma), own, place="sigma = 0", such_as="sqrt(max(sigma, 1e-12))")
    return {"Falloff": linked}


def _check_falloff2d(module: Module, linked: str | UserType, ranges: Mapping[str, Range]) -> dict[str, Any]:
    """Check it like an IFalloff, in random directions of random ellipses."""
    value_of, furthest_of = built_in("falloff2d").falloff2DOf[module], built_in("falloff2d").sigmaMaxOfOffsets[module]

    def places_at(sigma: NDArray, rng: np.random.Generator) -> Inputs:
        root, angle = rng.normal(size=(len(sigma), 2, 2)), rng.uniform(0, 2 * np.pi, len(sigma))
        matrix = root @ root.swapaxes(1, 2) + 0.2 * np.eye(2)
        unit = np.stack([np.cos(angle), np.sin(angle)], 1)
        d = unit * np.sqrt(sigma / np.einsum("ni,nij,nj->n", unit, matrix, unit))[:, None]
        conic = np.stack([matrix[:, 0, 0], matrix[:, 0, 1], matrix[:, 1, 1]], 1)
        return {"d": d.astype(np.float32), "conic": conic.astype(np.float32)}

    own, sigma = _check_values(lambda sigma, own, rng: value_of(*places_at(sigma, rng).values(), own), furthest_of, ranges)
    places = places_at(sigma, np.random.default_rng(2))
    _check_derivatives("value", value_of, {**places, "": own})
    at_mean = np.zeros_like(places["d"]), places["conic"], own
    _check_at_mean(value_of, *at_mean, place="d = (0, 0)", such_as="sqrt(max(dot(d, d), 1e-12))")
    return _linked(linked)


def _linked(linked: str | UserType) -> dict[str, Any]:
    assert isinstance(linked, UserType)
    return {"Falloff": linked, "Shape": shape_of(linked)}


# A splat that is evaluated along rays, as kernels see it.
_ALONG_RAYS: dict[str, Any] = {"Shape": "GeneralRayGaussian", "SHAPE_FLOATS": 15, "WITH_RAYS": True}


def _rays_at(sigma: NDArray, rng: np.random.Generator) -> Inputs:
    """The fields of random `SplatRay`s with |point|² = σ."""
    along, other = rng.normal(size=(2, len(sigma), 3))
    point = np.cross(along, other)
    scales = np.exp(rng.uniform(-2, 1, along.shape))
    axes = np.linalg.qr(rng.normal(size=(len(sigma), 3, 3)))[0]
    fields = {
        "point": point * (np.sqrt(sigma) / np.linalg.norm(point, axis=1))[:, None],
        "direction": along * scales / np.linalg.norm(along * scales, axis=1, keepdims=True),
        "scales": scales,
        "axes": axes,
        "position": rng.normal((0, 0, 4), 1, along.shape),
    }
    return {name: values.astype(np.float32) for name, values in fields.items()}


def _check_falloff3d(module: Module, linked: str | UserType, ranges: Mapping[str, Range]) -> dict[str, Any]:
    """Check it like an IFalloff, for random rays."""
    value_of, furthest_of = built_in("falloff3d").falloff3DOf[module], built_in("falloff3d").sigmaMaxOfRays[module]
    own, sigma = _check_values(lambda sigma, own, rng: value_of(_rays_at(sigma, rng), own), furthest_of, ranges)
    rays = _rays_at(sigma, np.random.default_rng(2))
    _check_derivatives("value", value_of, {"ray": rays, "": own})
    centred = rays | {"point": np.zeros_like(rays["point"])}
    _check_at_mean(value_of, centred, own, place="point = (0, 0, 0)", such_as="sqrt(max(dot(point, point), 1e-12))")
    return _ALONG_RAYS | _linked(linked)


def _check_splat_color(module: Module, linked: str | UserType, ranges: Mapping[str, Range]) -> dict[str, Any]:
    """Check it for random rays, some far outside of the splat, where its value and its derivatives must still be finite."""
    color_of, rng = built_in("splat_color").splatColorOf[module], np.random.default_rng(3)
    own, color = _random_numbers(ranges, rng), rng.uniform(0, 1, (_SAMPLES, 3)).astype(np.float32)
    rays = _rays_at(rng.uniform(0, 12, _SAMPLES), rng)
    _check_derivatives("color", color_of, {"color": color, "ray": rays, "": own})
    for sigma in (0.0, 1e4):
        outside = _rays_at(np.full(_SAMPLES, sigma), rng)
        slopes = gradients(color_of, np.ones((_SAMPLES, 3)), color, outside, own)
        if not _are_finite(color_of(color, outside, own), *slopes):
            raise SplatError(f"color or its derivative is not finite at |point| = {np.sqrt(sigma):g}; limit it")
    return _ALONG_RAYS | {"Hits": linked}


def _random_numbers(ranges: Mapping[str, Range], rng: np.random.Generator) -> Inputs:
    return {name: rng.uniform(*limits, _SAMPLES).astype(np.float32) for name, limits in ranges.items()}


def _check_values(
    value_at: Callable[[NDArray, Inputs, np.random.Generator], Any], furthest_of: ShaderFunction, ranges: Mapping[str, Range]
) -> tuple[Inputs, NDArray[np.float32]]:
    """Check that a falloff, a function of σ and own numbers, lies from 0 to 1, and that opacity times it is below 1/255 beyond
    its `sigmaMax`. Return own numbers and a σ below `sigmaMax`, for checks of derivatives."""
    rng = np.random.default_rng(0)
    own = _random_numbers(ranges, rng)
    opacity = np.exp(rng.uniform(np.log(1.001 * _ALPHA_MIN), 0, _SAMPLES)).astype(np.float32)
    furthest = np.asarray(furthest_of(opacity, own))
    _refuse(~(np.isfinite(furthest) & (furthest >= 0)), "sigmaMax is {}", furthest, opacity, own)

    for beyond in (1.002, 1.1, 1.5, 2, 4, 10):
        sigma = (furthest * beyond + 1e-3).astype(np.float32)
        alpha = opacity * np.asarray(value_at(sigma, own, rng))
        text = f"opacity · value is {{}} and not below 1/255 at {beyond:g} times sigmaMax; let that return more"
        _refuse(~(alpha < _ALPHA_MIN * 1.001), text, alpha, opacity, own)

    sigma = (furthest * rng.uniform(0, 1, _SAMPLES)).astype(np.float32)
    value = np.asarray(value_at(sigma, own, rng))
    _refuse(~((value >= 0) & (value <= 1 + 1e-5)), "value is {}, and not from 0 to 1,", value, opacity, own)
    return own, sigma


def _check_at_mean(value_of: ShaderFunction, *inputs: Any, place: str, such_as: str) -> None:
    """Check that a falloff's derivatives are finite on the mean, where a pixel's centre may lie."""
    if not _are_finite(*gradients(value_of, np.ones(_SAMPLES), *inputs)):
        raise SplatError(
            f"the derivative of value is not finite at {place}, on the mean, where a pixel may lie; keep the argument of a "
            f"root, power or logarithm above 0, such as {such_as}"
        )


def _are_finite(*values: Any) -> bool:
    """True if all numbers in arrays and in structs are finite."""
    return all(_are_finite(*v.values()) if isinstance(v, dict) else bool(np.isfinite(v).all()) for v in values)


def _refuse(wrong: NDArray, what: str, values: NDArray, opacity: NDArray, own: Inputs) -> None:
    if wrong.any():
        i = int(np.argmax(wrong))
        raise SplatError(f"{what.format(f'{values[i]:.4g}')} at {place_of({'opacity': opacity, **own}, i)}")


def _check_camera(module: Module, linked: str | UserType, ranges: Mapping[str, Range]) -> dict[str, Any]:
    """Check a camera's projection, and its Jacobian, which shapes splats and is differentiated once more."""
    if len(ranges) > sum(_COEFFICIENTS.values()):
        raise SplatError(f"{len(ranges)} ranges are given; a lens has {sum(_COEFFICIENTS.values())} coefficients at most")
    rng = np.random.default_rng(0)
    coefficients = np.zeros((_SAMPLES, sum(_COEFFICIENTS.values())), np.float32)
    for column, limits in enumerate(ranges.values()):
        coefficients[:, column] = rng.uniform(*limits, _SAMPLES)
    lens = np.split(coefficients, np.cumsum(list(_COEFFICIENTS.values()))[:-1], 1)
    # Points in front of the camera, and anywhere.
    ahead = np.append(rng.uniform(-0.8, 0.8, (_SAMPLES, 2)), np.ones((_SAMPLES, 1)), 1) * rng.uniform(1, 6, (_SAMPLES, 1))
    around = rng.normal(size=(_SAMPLES, 3)) * 2
    point = np.where(rng.random((_SAMPLES, 1)) < 0.7, ahead, around).astype(np.float32)
    fixed = {"rotation": np.eye(3), "translation": np.zeros(3)}
    inputs = {
        "point": point,
        "focal": rng.uniform(80, 120, (_SAMPLES, 2)).astype(np.float32),
        "principal": rng.uniform(40, 60, (_SAMPLES, 2)).astype(np.float32),
        **dict(zip(_COEFFICIENTS, lens, strict=True)),
    }

    def arguments(inputs: Inputs) -> tuple[dict[str, Any], NDArray]:
        return fixed | {name: value for name, value in inputs.items() if name != "point"}, inputs["point"]

    def by_input(of_camera: Inputs, of_point: NDArray, *_: None) -> Inputs:
        return of_camera | {"point": of_point}

    model = built_in("camera_model")
    project, linearise = model.projectThrough[module], model.linearise[module]
    depth = np.asarray(model.depthThrough[module](point))
    may_be = np.asarray(model.isInDomainThrough[module](*arguments(inputs))) & (depth > 0.3)
    if may_be.mean() < 0.05:
        raise SplatError("isInDomain is false, or depth below 0.3, nearly everywhere; nothing is left to check")
    inputs = {name: value[may_be] for name, value in inputs.items()}
    identity = np.eye(3, dtype=np.float32)

    def v_project(v: NDArray, inputs: Inputs) -> Inputs:
        return by_input(*gradients(project, v, *arguments(inputs)))

    def jacobian(inputs: Inputs) -> NDArray:
        rows = linearise(*arguments(inputs), identity)
        return np.stack([rows["x"], rows["y"]], 1)

    def v_jacobian(v: NDArray, inputs: Inputs) -> Inputs:
        return by_input(*gradients(linearise, {"x": v[:, 0], "y": v[:, 1]}, *arguments(inputs), identity))

    compare("project", lambda inputs: np.asarray(project(*arguments(inputs))), v_project, inputs)
    # The forward derivative gives the Jacobian's columns, the reverse one its rows.
    columns, units = jacobian(inputs), np.eye(2, dtype=np.float32)
    rows = [v_project(np.broadcast_to(v, (len(columns), 2)), inputs)["point"] for v in units]
    off = np.abs(columns - np.stack(rows, 1)).max((1, 2)) > 1e-3 * np.abs(columns).max((1, 2)) + 1e-3
    if off.mean() > KINKS:
        raise SplatError("the forward derivative of project is not the transpose of the reverse one; is one of them your own?")
    compare("the Jacobian of project", jacobian, v_jacobian, inputs)
    return {"CameraModel": linked} | ({"WITH_LENS": True} if ranges else {})


def _check_color(module: Module, linked: str | UserType, ranges: Mapping[str, Range]) -> dict[str, Any]:
    takes = takes_of(linked) if isinstance(linked, UserType) else _COLORS.get(linked, (None, 0))
    features, weights = takes[0] or _ANY_FEATURES, takes[1]
    rng = np.random.default_rng(0)
    direction = rng.normal(size=(_SAMPLES, 3))
    vectors = -(-features // 3)
    values = rng.normal(size=(_SAMPLES, vectors * 3))
    values[:, features:] = 0
    inputs = {
        "direction": direction / np.linalg.norm(direction, axis=1, keepdims=True),
        "features": values.reshape(_SAMPLES, vectors, 3),
        "weights": rng.normal(size=(_SAMPLES, max(weights, 1))) * (weights > 0),
    }
    function = built_in("color").colorOf[vectors, max(weights, 1), module]
    names = {"features": [f"features[{i}]" for i in range(features)], "weights": [f"weights[{i}]" for i in range(weights)]}
    _check_derivatives("color", function, {name: value.astype(np.float32) for name, value in inputs.items()}, names=names)
    return {"Color": linked, "FEATURES": features} | ({"WEIGHTS": weights} if weights else {})


def _check_pixel_loss(module: Module, linked: str | UserType, ranges: Mapping[str, Range]) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    rendered = rng.uniform(0, 1, (_SAMPLES, 3))
    # Away from the kink that losses may have at equal colours.
    error = rng.choice([-1, 1], rendered.shape) * np.exp(rng.uniform(-3, 0, rendered.shape))
    inputs = {"rendered": rendered.astype(np.float32), "photograph": (rendered + error).astype(np.float32)}
    function = built_in("pixel_loss").pixelLossOf[3, module]
    _check_derivatives("loss", function, inputs)
    # A root's derivative is infinite at equal colours.
    slopes = gradients(function, np.ones(_SAMPLES), inputs["rendered"], inputs["rendered"])
    if not all(np.isfinite(slope).all() for slope in slopes):
        raise SplatError("the derivative of loss is not finite where both colours are equal; add something small below a root")
    return {"PixelLoss": linked} | ({"JOINT": True} if isinstance(linked, UserType) else {})


def _check_field(module: Module, linked: str | UserType, ranges: Mapping[str, Range]) -> dict[str, Any]:
    queries, rng = FieldQueries(module), np.random.default_rng(0)
    params = first_values(linked, 0) if isinstance(linked, UserType) else np.full(4, 0.5, np.float32)
    direction = rng.normal(size=(_PLACES, 3))
    direction /= np.linalg.norm(direction, axis=1, keepdims=True)
    place = rng.uniform(0.02, 0.98, (_PLACES, 3)).astype(np.float32)
    inputs = {"place": place, "direction": direction.astype(np.float32)}

    def query(inputs: Inputs) -> NDArray:
        return queries.values(params, **inputs)

    def v_query(v: NDArray, inputs: Inputs) -> Inputs:
        return dict(zip(inputs, queries.gradients(params, **inputs, v=v)[1:], strict=True))

    # Voxels of a fine grid are small, and have a kink at each face.
    compare("query", query, v_query, inputs, steps={"place": 1e-4}, kinks=0.1)
    _check_numbers(queries, params, inputs)
    return {"Field": "OwnField", "FieldFunction": linked}


def _check_numbers(queries: FieldQueries, params: NDArray, inputs: Inputs) -> None:
    """Check derivatives by a field's parameters, each summed over all places."""
    # Not 1: a derivative of one's own may forget to multiply by it.
    cotangent = 1.5
    found = np.stack([queries.gradients(params, **inputs, v=np.tile(v, (_PLACES, 1)))[0] for v in cotangent * np.eye(4)], 1)
    found /= cotangent
    finite = np.isfinite(found).all(1)
    if not finite.all():
        raise SplatError(f"the derivative of query by number {int(np.argmin(finite))} is not finite")
    rng = np.random.default_rng(2)
    some = rng.choice(len(params), min(_NUMBERS, len(params)), replace=False)
    expected, noise = np.zeros((2, len(some), 4))
    for i, number in enumerate(some):
        ends, moved = [], params.copy()
        for sign in (1, -1):
            moved[number] = params[number] + sign * 1e-2 * max(abs(params[number]), 0.1)
            ends.append((float(moved[number]), queries.values(moved, **inputs)))
        (above, high), (below, low) = ends
        expected[i] = (high - low).sum(0) / (above - below)
        noise[i] = 1e-6 * np.linalg.norm(high, axis=0) / (above - below)
    for k in range(4):
        worst = worst_of(found[some, k], expected[:, k], noise[:, k], KINKS)
        if worst is not None:
            raise SplatError(
                f"the derivative of query[{k}] by number {int(some[worst])} is {found[some[worst], k]:.4g}, summed over "
                f"{_PLACES} places, where finite differences have {expected[worst, k]:.4g}; is it read by weightAt, rowAt or "
                "networkAt, and is every function [Differentiable]?"
            )


def _check_derivatives(what: str, function: ShaderFunction, inputs: Mapping[str, NDArray | Inputs], **how: Any) -> None:
    """Compare the derivatives of a function by all of its `inputs`, dicts for structs, with finite differences. Messages name
    fields after their struct, unless its own name is empty."""
    keys = {
        name: {field: f"{name}.{field}".removeprefix(".") for field in value} if isinstance(value, dict) else name
        for name, value in inputs.items()
    }

    def arguments(flat: Inputs) -> list[Any]:
        return [{field: flat[k] for field, k in key.items()} if isinstance(key, dict) else flat[key] for key in keys.values()]

    def by_key(values: Iterable[Any]) -> Inputs:
        flat: Inputs = {}
        for key, value in zip(keys.values(), values, strict=True):
            flat |= {k: value[field] for field, k in key.items()} if isinstance(key, dict) else {key: value}
        return flat

    compare(
        what,
        lambda flat: np.asarray(function(*arguments(flat))),
        lambda v, flat: by_key(gradients(function, v, *arguments(flat))),
        by_key(inputs.values()),
        **how,
    )


_Check = Callable[[Module, str | UserType, Mapping[str, Range]], dict[str, Any]]
_SPLAT_KERNELS = (("rasterize", "rasterizeForward"), ("rasterize", "rasterizeBackward"), ("tiles", "countTiles"))
# By interface: the check, and the kernels that are linked with its types.
_CHECKS: dict[str, tuple[_Check, tuple[tuple[str, str], ...]]] = {
    "IFalloff": (_check_falloff, _SPLAT_KERNELS),
    "IFalloff2D": (_check_falloff2d, _SPLAT_KERNELS),
    "IFalloff3D": (_check_falloff3d, (*_SPLAT_KERNELS[:2], ("project_along_rays", "projectForward"))),
    "ISplatColor": (_check_splat_color, _SPLAT_KERNELS[:2]),
    "ICameraModel": (_check_camera, (("project", "projectForward"), ("project", "projectBackward"))),
    "IColor": (_check_color, (("shade", "shadeForward"), ("shade", "shadeBackward"))),
    "IPixelLoss": (_check_pixel_loss, (("loss", "ssimInTiles"), ("loss", "gradientInTiles"))),
    "IFieldFunction": (_check_field, (("volume", "volumeForward"), ("volume", "volumeBackward"))),
}
