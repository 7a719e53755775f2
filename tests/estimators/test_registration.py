"""RobustICP: known motions with clutter, scipy's rotation fit, and the checks scikit-learn's own cannot make."""

from __future__ import annotations

import matplotlib
import numpy as np
import pytest
from scipy.spatial.transform import Rotation

from compensate.estimators import RobustICP
from compensate.estimators.registration import affine, rigid

matplotlib.use("Agg")


def cloud(rng: np.random.Generator, n: int, d: int) -> np.ndarray:
    """A closed curve with unequal lobes, or a bracket of three unequal plates; of size about one."""
    if d == 2:
        angle = rng.uniform(0, 2 * np.pi, n)
        radius = 1 + 0.3 * np.cos(2 * angle) + 0.25 * np.sin(3 * angle)
        return radius[:, None] * np.column_stack([np.cos(angle), np.sin(angle)])
    plate = rng.choice(3, n, p=[0.45, 0.35, 0.2])
    corner = np.array([[-1, -0.6, -0.1], [-1, -0.6, -0.1], [0.4, 0.2, -0.1]])[plate]
    return corner + rng.random((n, 3)) * np.array([[2, 1.2, 0], [0, 1.2, 1.0], [0.6, 0, 0.6]])[plate]


def scene(seed: int, d: int, outliers: float = 0.3, n: int = 400):
    """Source and target sampled apart from one shape, the source with noise 0.01 and clutter on one side, turned by 10
    to 30 degrees about any axis and displaced by up to 0.3. Returns source, target, rotation, translation."""
    rng = np.random.default_rng(seed)
    target, source = cloud(rng, 1500, d), cloud(rng, n, d) + 0.01 * rng.normal(size=(n, d))
    k = round(outliers * n)
    source[:k] = rng.uniform(-0.8, 0.8, size=(k, d)) + np.eye(d)[0] * 2
    angle = np.deg2rad(rng.uniform(10, 30)) * rng.choice([-1, 1])
    axis = rng.normal(size=3) if d == 3 else np.array([0.0, 0.0, 1.0])
    R = Rotation.from_rotvec(angle * axis / np.linalg.norm(axis)).as_matrix()[:d, :d]
    b = rng.uniform(-0.3, 0.3, d)
    return (source - b) @ R, target, R, b


def degrees(A: np.ndarray, B: np.ndarray) -> float:
    """The angle of the turn that is left between two rotations."""
    cosine = (np.trace(A.T @ B) - (len(A) - 2)) / 2
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


@pytest.mark.slow
@pytest.mark.parametrize("d", [2, 3])
def test_recovers_a_motion_with_clutter_where_plain_icp_does_not(d: int) -> None:
    robust = plain = control = 0
    for seed in range(20):
        source, target, R, _ = scene(seed, d)
        robust += degrees(RobustICP().fit(source, target).rotation_, R) <= 2
        plain += degrees(RobustICP(lam=np.inf).fit(source, target).rotation_, R) <= 2
        # The set-up is fair: without clutter plain ICP does it.
        source, target, R, _ = scene(seed, d, outliers=0.0)
        control += degrees(RobustICP(lam=np.inf).fit(source, target).rotation_, R) <= 2
    assert robust >= 18
    assert plain <= 5
    assert control >= 18


def test_rigid_step_is_scipys() -> None:
    rng = np.random.default_rng(0)
    P, Q, w = rng.normal(size=(30, 3)), rng.normal(size=(30, 3)), rng.uniform(0.1, 2, 30)
    R, b = rigid(P, Q, w)
    p, q = np.average(P, axis=0, weights=w), np.average(Q, axis=0, weights=w)
    expected, _ = Rotation.align_vectors(Q - q, P - p, weights=w)
    np.testing.assert_allclose(R, expected.as_matrix(), atol=1e-9)
    np.testing.assert_allclose(b, q - R @ p, atol=1e-9)
    assert np.linalg.det(rigid(P, P * [1, 1, -1], w)[0]) == pytest.approx(1), "a reflection is not a rotation"


def test_affine_step_is_least_squares() -> None:
    rng = np.random.default_rng(0)
    P, M, b = rng.normal(size=(10, 2)), rng.normal(size=(2, 2)), rng.normal(size=2)
    found = affine(P, P @ M.T + b, np.ones(10))
    np.testing.assert_allclose(found[0], M, atol=1e-9)
    np.testing.assert_allclose(found[1], b, atol=1e-9)


def test_nonrigid_motion_bends_where_a_rigid_one_cannot() -> None:
    rng = np.random.default_rng(0)
    flat = cloud(rng, 250, 2)
    bend = flat + 0.25 * np.column_stack([np.zeros(250), flat[:, 0] ** 2])
    source = np.vstack([flat, rng.uniform(1.8, 3.0, size=(50, 2))])
    errors = {}
    for motion in ("rigid", "nonrigid"):
        model = RobustICP(motion, smoothness=0.3).fit(source, bend)
        moved = model.transform(flat)
        errors[motion] = np.linalg.norm(moved[:, None] - bend, axis=2).min(1).mean()
    assert errors["nonrigid"] < 0.3 * errors["rigid"]
    assert errors["nonrigid"] < 0.02
    assert model.outliers_[250:].all()
    # A smooth field: neighbors move alike.
    step = 1e-3
    near = model.transform(flat + step) - model.transform(flat) - step
    assert np.abs(near).max() < 5 * step


@pytest.mark.slow
def test_further_starts_find_a_large_turn() -> None:
    rng = np.random.default_rng(0)
    target = cloud(rng, 500, 2)
    R = Rotation.from_euler("z", 150, degrees=True).as_matrix()[:2, :2]
    source = target[:300] @ R
    assert degrees(RobustICP(random_state=0).fit(source, target).rotation_, R) > 20
    assert degrees(RobustICP(n_init=15, random_state=0).fit(source, target).rotation_, R) < 1
    start = np.eye(3)
    start[:2, :2] = R
    assert degrees(RobustICP(init=start).fit(source, target).rotation_, R) < 1


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"motion": "projective"}, r"The 'motion' parameter must be one of \{'rigid', 'affine', 'nonrigid'\}"),
        ({"lam": -1}, "lam == -1, must be > 0"),
        ({"penalty": "l1"}, "The 'penalty' parameter must be one of"),
        ({"width": 0}, "width == 0, must be > 0"),
        ({"init": np.eye(2)}, r"init has shape \(2, 2\), but \(3, 3\) was expected"),
        ({"n_init": 0}, "n_init == 0, must be >= 1"),
    ],
)
def test_bad_parameters(params: dict[str, object], message: str) -> None:
    source, target, _, _ = scene(0, 2, n=50)
    with pytest.raises(ValueError, match=message):
        RobustICP(**params).fit(source, target)
