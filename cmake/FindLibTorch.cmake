# The two libtorch libraries that attnres needs, torch_cpu and c10, as the target LibTorch::cpu.
#
# Looked for in LibTorch_ROOT and CMAKE_PREFIX_PATH (an official libtorch, or the folder torch of a
# wheel), then in the wheel of the project's .venv, which scripts/setup makes. torch's own CMake
# package is not used: with a CUDA wheel it insists on a CUDA toolkit.
file(GLOB _wheel ${CMAKE_SOURCE_DIR}/.venv/lib/python3*/site-packages/torch)
find_path(LibTorch_INCLUDE_DIR ATen/core/Tensor.h HINTS ${_wheel} PATH_SUFFIXES include)
find_library(LibTorch_CPU_LIBRARY torch_cpu HINTS ${_wheel} PATH_SUFFIXES lib)
find_library(LibTorch_C10_LIBRARY c10 HINTS ${_wheel} PATH_SUFFIXES lib)
if(LibTorch_INCLUDE_DIR AND EXISTS ${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h)
  file(STRINGS ${LibTorch_INCLUDE_DIR}/torch/headeronly/version.h _lines REGEX "TORCH_VERSION_M[A-Z]+ [0-9]+")
  string(REGEX MATCHALL "[0-9]+" _numbers "${_lines}")
  list(JOIN _numbers "." LibTorch_VERSION)
endif()

include(FindPackageHandleStandardArgs)
find_package_handle_standard_args(
  LibTorch
  REQUIRED_VARS LibTorch_CPU_LIBRARY LibTorch_C10_LIBRARY LibTorch_INCLUDE_DIR
  VERSION_VAR LibTorch_VERSION
  REASON_FAILURE_MESSAGE "run scripts/setup, or point LibTorch_ROOT at an official libtorch or a wheel's folder torch")

if(LibTorch_FOUND AND NOT TARGET LibTorch::cpu)
  add_library(LibTorch::cpu INTERFACE IMPORTED)
  # SYSTEM: torch's headers warn under -Wextra.
  target_include_directories(LibTorch::cpu SYSTEM INTERFACE ${LibTorch_INCLUDE_DIR}
                             ${LibTorch_INCLUDE_DIR}/torch/csrc/api/include)
  target_link_libraries(LibTorch::cpu INTERFACE ${LibTorch_CPU_LIBRARY} ${LibTorch_C10_LIBRARY})
  # The library is built with NDEBUG, which changes the layout of its structs (RecordFunction's).
  target_compile_definitions(LibTorch::cpu INTERFACE NDEBUG)
  # g++ 13 sees the vector<bool> of torch's autograd functions overflow, which it does not.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_GREATER_EQUAL 13)
    target_compile_options(LibTorch::cpu INTERFACE -Wno-array-bounds -Wno-stringop-overflow)
  endif()
endif()

# With ATTNRES_CUDA also LibTorch::cuda: torch's part for GPUs, and the CUDA runtime that it uses. A
# libtorch for CPUs has neither.
if(LibTorch_FOUND AND ATTNRES_CUDA AND NOT TARGET LibTorch::cuda)
  cmake_path(GET LibTorch_CPU_LIBRARY PARENT_PATH _libraries)
  foreach(_name torch_cuda c10_cuda)
    find_library(LibTorch_${_name} ${_name} HINTS ${_libraries} NO_DEFAULT_PATH)
  endforeach()
  find_library(LibTorch_CUDART NAMES libcudart.so.13
               HINTS ${_libraries} ${_libraries}/../../nvidia/cu13/lib
                     ${CMAKE_CUDA_IMPLICIT_LINK_DIRECTORIES})
  if(LibTorch_torch_cuda AND LibTorch_c10_cuda AND LibTorch_CUDART)
    add_library(LibTorch::cuda INTERFACE IMPORTED)
    target_include_directories(LibTorch::cuda SYSTEM INTERFACE ${CMAKE_CUDA_TOOLKIT_INCLUDE_DIRECTORIES})
    # --no-as-needed: torch finds its part for GPUs by its being there.
    target_link_libraries(LibTorch::cuda INTERFACE -Wl,--no-as-needed ${LibTorch_torch_cuda} -Wl,--as-needed
                          ${LibTorch_c10_cuda} ${LibTorch_CUDART} LibTorch::cpu)
  endif()
endif()
