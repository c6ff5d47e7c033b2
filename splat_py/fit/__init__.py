"""Parts that the fits of Gaussians, images and volumes share; the training steps themselves stay in their own packages."""
