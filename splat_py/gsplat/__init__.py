"""gsplat's names over our own stages: `import splat_py.gsplat as gsplat`."""
