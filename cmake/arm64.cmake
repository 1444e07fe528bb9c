# Compiles for ARM64 Linux on another machine, as scripts/arm64 does. ATTNRES_ARM64_ROOT is where Debian's packages for
# arm64 lie; what is built is run by qemu-aarch64, on the processor ATTNRES_ARM64_CPU.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(ATTNRES_ARM64_CPU cortex-a72 CACHE STRING "What qemu-aarch64 calls the processor that programs run on")
list(APPEND CMAKE_TRY_COMPILE_PLATFORM_VARIABLES ATTNRES_ARM64_ROOT ATTNRES_ARM64_CPU)
set(CMAKE_CROSSCOMPILING_EMULATOR qemu-aarch64;-cpu;${ATTNRES_ARM64_CPU};-L;${ATTNRES_ARM64_ROOT})
# Its own headers and libraries come first; the others' dependencies are found where they lie.
set(CMAKE_FIND_ROOT_PATH ${ATTNRES_ARM64_ROOT})
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(CMAKE_EXE_LINKER_FLAGS_INIT -Wl,-rpath-link,${ATTNRES_ARM64_ROOT}/usr/lib/aarch64-linux-gnu)
set(CMAKE_SHARED_LINKER_FLAGS_INIT ${CMAKE_EXE_LINKER_FLAGS_INIT})
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${ATTNRES_ARM64_ROOT})
set(ENV{PKG_CONFIG_LIBDIR}
    ${ATTNRES_ARM64_ROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${ATTNRES_ARM64_ROOT}/usr/share/pkgconfig)
