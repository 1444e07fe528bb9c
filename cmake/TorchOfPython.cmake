# Points LibTorch_ROOT at the torch of the Python that pip builds for, the one that will import the
# package, and notes its minor version as TORCH_OF_PYTHON.
find_package(Python REQUIRED COMPONENTS Interpreter)
execute_process(
  COMMAND ${Python_EXECUTABLE} -c "import torch; print(torch.__path__[0], torch.__version__)"
  OUTPUT_VARIABLE _torch ERROR_VARIABLE _error OUTPUT_STRIP_TRAILING_WHITESPACE)
if(NOT _torch MATCHES "^(.+) ([0-9]+\\.[0-9]+)")
  message(FATAL_ERROR "attnres is built for the torch that is there, and ${Python_EXECUTABLE} has "
                      "none: install torch, then run pip install --no-build-isolation .\n${_error}")
endif()
set(LibTorch_ROOT ${CMAKE_MATCH_1})
set(TORCH_OF_PYTHON ${CMAKE_MATCH_2})
