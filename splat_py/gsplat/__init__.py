"""gsplat's names over splat_py: `import splat_py.gsplat as gsplat`."""
