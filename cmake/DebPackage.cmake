# cpack's settings for scripts/deb, which adds the tree of files, its version and what it depends on.
set(CPACK_GENERATOR DEB)
set(CPACK_PACKAGE_NAME attnres)
set(CPACK_PACKAGE_FILE_NAME attnres)
set(CPACK_PACKAGE_VENDOR attnres)
set(CPACK_SET_DESTDIR ON)
set(CPACK_INSTALL_PREFIX /)
set(CPACK_THREADS 0)
set(CPACK_PACKAGE_DESCRIPTION_SUMMARY "train, run, study and serve models with Attention Residuals")
set(CPACK_PACKAGE_DESCRIPTION
    "Transformers whose sublayers choose their own inputs from everything computed
before them (arXiv 2603.15031): the program attnres, its recipes and small
models, and C and C++ libraries with their headers. The parts of PyTorch that
it computes with are in the package.")
set(CPACK_DEBIAN_FILE_NAME DEB-DEFAULT)
set(CPACK_DEBIAN_PACKAGE_SECTION science)
set(CPACK_DEBIAN_PACKAGE_RECOMMENDS gnuplot-nox)
set(CPACK_DEBIAN_PACKAGE_SUGGESTS openmpi-bin)
set(CPACK_DEBIAN_PACKAGE_CONTROL_STRICT_PERMISSION ON)
