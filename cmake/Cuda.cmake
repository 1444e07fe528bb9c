# CUDA as a language, for ATTNRES_CUDA: ON, or AUTO, which becomes ON where there is nvcc 13.
include(CheckLanguage)
check_language(CUDA)
if(ATTNRES_CUDA STREQUAL AUTO AND NOT CMAKE_CUDA_COMPILER)
  set(ATTNRES_CUDA OFF)
  return()
endif()
# The machine code of an H100 and H200, and for other GPUs what their driver compiles.
if(NOT CMAKE_CUDA_ARCHITECTURES)
  set(CMAKE_CUDA_ARCHITECTURES 90a-real 80-virtual)
endif()
# A process has one runtime, which is libtorch's.
set(CMAKE_CUDA_RUNTIME_LIBRARY None)
enable_language(CUDA)
# CMake 3.25 does not know of it, nor uses it but by this.
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13)
  if(NOT ATTNRES_CUDA STREQUAL AUTO)
    message(FATAL_ERROR "libtorch is built for CUDA 13, but nvcc is ${CMAKE_CUDA_COMPILER_VERSION}: install "
                        "nvcc 13, or name it with -DCMAKE_CUDA_COMPILER=...")
  endif()
  set(ATTNRES_CUDA OFF)
endif()
