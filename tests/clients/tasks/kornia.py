"""filters, edges, geometry, colour, morphology, features, augmentations with fixed parameters and
losses, with gradients."""

import numpy as np

from tests.clients.inputs import numbers, shares

PACKAGES = "kornia"


def _image(torch):
    return torch.tensor(shares(2, 3, 20, 24), requires_grad=True)


def task_filters(torch):
    import kornia

    x, F = _image(torch), kornia.filters
    found = {
        "gaussian": F.gaussian_blur2d(x, (5, 5), (1.2, 1.2)),
        "box": F.box_blur(x, (3, 3)),
        "median": F.median_blur(x, (3, 3)),
        "sobel": F.sobel(x),
        "laplacian": F.laplacian(x, 3),
        "unsharp": F.unsharp_mask(x, (3, 3), (1.0, 1.0)),
        "gradient": F.spatial_gradient(x),
        "bilateral": F.bilateral_blur(x, (3, 3), 0.1, (1.5, 1.5)),
        "motion": F.motion_blur(x, 5, 30.0, 0.5),
        "canny": F.canny(x)[0],
        "guided": F.guided_blur(x, x, 3, 0.1),
    }
    sum(v.square().mean() for v in found.values()).backward()
    return {**found, "d x": x.grad}


def task_geometry(torch):
    import kornia
    import kornia.geometry as G

    x = _image(torch)
    angle = torch.tensor([20.0, -15.0])
    center = torch.tensor([[11.5, 9.5]] * 2)
    turn = G.get_rotation_matrix2d(center, angle, torch.ones(2, 2))
    corners = torch.tensor([[[0.0, 0], [23, 0], [23, 19], [0, 19]]] * 2)
    homography = G.get_perspective_transform(corners, corners + torch.tensor(shares(2, 4, 2)) * 3)
    found = {
        "rotated": G.rotate(x, angle),
        "affine": G.warp_affine(x, turn, (20, 24)),
        "perspective": G.warp_perspective(x, homography, (20, 24)),
        "translated": G.translate(x, torch.tensor([[2.0, 1.0]] * 2)),
        "scaled": G.scale(x, torch.tensor([[1.2, 0.8]] * 2)),
        "sheared": G.shear(x, torch.tensor([[0.1, 0.2]] * 2)),
        "resized": G.resize(x, (12, 14)),
        "flipped": G.hflip(x) + G.vflip(x) + G.rot180(x),
        "pyramid": G.pyrdown(x),
        "cropped": G.center_crop(x, (8, 8)),
        "remapped": G.remap(x, *(torch.tensor(shares(2, 20, 24, seed=s)) * 18 for s in (0, 1))),
    }
    sum(v.square().mean() for v in found.values()).backward()
    points = torch.tensor(numbers(2, 8, 2))
    return {
        **found,
        "d x": x.grad,
        "points": G.transform_points(homography, points),
        "rotation": G.axis_angle_to_rotation_matrix(torch.tensor(numbers(4, 3))),
        "quaternions": G.rotation_matrix_to_quaternion(
            G.axis_angle_to_rotation_matrix(torch.tensor(numbers(4, 3)))
        ),
        "homography": G.find_homography_dlt(points, points * 2 + 1),
        "normalized": kornia.geometry.normalize_homography(homography, (20, 24), (20, 24)),
    }


def task_colour(torch):
    import kornia.color as C

    x = _image(torch)
    found = {
        name: getattr(C, f"rgb_to_{name}")(x)
        for name in ("grayscale", "hsv", "hls", "lab", "luv", "ycbcr", "yuv", "xyz", "linear_rgb")
    }
    sum(v.square().mean() for v in found.values()).backward()
    back = {
        f"{n} back": getattr(C, f"{n}_to_rgb")(found[n]) for n in ("hsv", "lab", "ycbcr", "xyz")
    }
    return {**found, **back, "d x": x.grad}


def task_enhancement_and_morphology(torch):
    import kornia.enhance as E
    import kornia.morphology as M

    x, kernel = _image(torch).detach(), torch.ones(3, 3)
    return {
        "brightness": E.adjust_brightness(x, 0.2),
        "contrast": E.adjust_contrast(x, 1.3),
        "saturation": E.adjust_saturation(x, 0.6),
        "hue": E.adjust_hue(x, 0.4),
        "gamma": E.adjust_gamma(x, 1.4),
        "normal": E.normalize(x, torch.tensor([0.5] * 3), torch.tensor([0.2] * 3)),
        "equalized": E.equalize(x),
        "posterized": E.posterize(x, 4),
        "solarized": E.solarize(x, 0.4),
        "sharp": E.sharpness(x, 0.7),
        "histogram": E.histogram(x[:, 0].flatten(1), torch.linspace(0, 1, 8), torch.tensor(0.1)),
        **{
            name: getattr(M, name)(x, kernel)
            for name in ("dilation", "erosion", "opening", "closing", "gradient", "top_hat")
        },
    }


def task_augmentation(torch):
    import kornia.augmentation as K

    x = _image(torch).detach()
    steps = K.AugmentationSequential(
        K.RandomHorizontalFlip(p=1.0),
        K.CenterCrop((16, 18)),
        K.Normalize(torch.tensor([0.5] * 3), torch.tensor([0.25] * 3)),
        data_keys=["input", "keypoints"],
    )
    points = torch.tensor([[[3.0, 4.0], [10.0, 12.0]]] * 2)
    image, moved = steps(x, points)
    affine = K.RandomAffine((30.0, 30.0), p=1.0)
    return {
        "image": image,
        "points": moved,
        "affine": affine(x),
        "matrix": affine.transform_matrix,
        "gray": K.RandomGrayscale(p=1.0)(x),
        "padded": K.PadTo((24, 28))(x),
    }


def task_losses_and_features(torch):
    import kornia

    L = kornia.losses
    a, b = _image(torch), torch.tensor(shares(2, 3, 20, 24, seed=1))
    labels = torch.tensor((shares(2, 20, 24) * 3).astype(np.int64))
    found = {
        "ssim": L.ssim_loss(a, b, 5),
        "psnr": L.psnr_loss(a, b, 1.0),
        "variation": L.total_variation(a).mean(),
        "dice": L.dice_loss(a, labels),
        "focal": L.focal_loss(a, labels, 0.5, 2.0, "mean"),
        "tversky": L.tversky_loss(a, labels, 0.3, 0.7),
        "charbonnier": L.charbonnier_loss(a, b, "mean"),
        "depth": L.inverse_depth_smoothness_loss(a[:, :1], b),
    }
    sum(found.values()).backward()
    gray = b.mean(1, keepdim=True)
    return {
        **found,
        "d a": a.grad,
        "harris": kornia.feature.harris_response(gray),
        "gftt": kornia.feature.gftt_response(gray),
        "hessian": kornia.feature.hessian_response(gray),
        "dog": kornia.feature.dog_response_single(gray),
    }
