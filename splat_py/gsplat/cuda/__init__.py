"""The names of `gsplat.cuda`, where scripts import stages from. Nothing here is about CUDA."""
