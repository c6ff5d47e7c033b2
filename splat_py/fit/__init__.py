"""Parts that the fits of Gaussians, images and volumes share; the steps themselves stay with them."""
