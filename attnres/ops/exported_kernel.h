// Kernels are templates on the storage type, compiled once for every instruction set. Highway
// chooses among versions of plain functions: these macros make them of a template, and the
// functions that a kernel.h declares. For the sources kernel_simd.cc.
//
// NAME is declared in kernel.h by ATTNRES_DECLARE.. of the same ending (storage.h), and TEMPLATE
// defined in kernel_simd.cc or in an -inl.h: both take (operation, first, last), and those of the
// macros _WITH_SUMS also a pointer to the sums to which a range of tokens adds.
#pragma once

#include <cstdint>

#include "attnres/ops/storage.h"

// In HWY_NAMESPACE.
#define ATTNRES_COMPILE_SINGLE(NAME, OPERATION, TEMPLATE) \
  ATTNRES_FOR_SINGLE_TYPES(ATTNRES_COMPILE_ONE, NAME, OPERATION, TEMPLATE)
#define ATTNRES_COMPILE_NUMBERS(NAME, OPERATION, TEMPLATE) \
  ATTNRES_FOR_NUMBER_TYPES(ATTNRES_COMPILE_ONE, NAME, OPERATION, TEMPLATE)
#define ATTNRES_COMPILE(NAME, OPERATION, TEMPLATE) \
  ATTNRES_FOR_STORAGE_TYPES(ATTNRES_COMPILE_ONE, NAME, OPERATION, TEMPLATE)
#define ATTNRES_COMPILE_ONE(SUFFIX, STORAGE, NAME, OPERATION, TEMPLATE)             \
  void NAME##_##SUFFIX(const OPERATION<STORAGE>& op, int64_t first, int64_t last) { \
    TEMPLATE(op, first, last);                                                      \
  }
#define ATTNRES_COMPILE_WITH_SUMS(NAME, OPERATION, TEMPLATE) \
  ATTNRES_FOR_STORAGE_TYPES(ATTNRES_COMPILE_ONE_WITH_SUMS, NAME, OPERATION, TEMPLATE)
#define ATTNRES_COMPILE_ONE_WITH_SUMS(SUFFIX, STORAGE, NAME, OPERATION, TEMPLATE) \
  void NAME##_##SUFFIX(const OPERATION<STORAGE>& op, int64_t first, int64_t last, \
                       Compute<STORAGE>* sums) {                                  \
    TEMPLATE(op, first, last, sums);                                              \
  }

// Under HWY_ONCE, in attnres::kernel.
#define ATTNRES_EXPORT_SINGLE(NAME, OPERATION) \
  ATTNRES_FOR_SINGLE_TYPES(ATTNRES_EXPORT_ONE, NAME, OPERATION)
#define ATTNRES_EXPORT_NUMBERS(NAME, OPERATION) \
  ATTNRES_FOR_NUMBER_TYPES(ATTNRES_EXPORT_ONE, NAME, OPERATION)
#define ATTNRES_EXPORT(NAME, OPERATION) \
  ATTNRES_FOR_STORAGE_TYPES(ATTNRES_EXPORT_ONE, NAME, OPERATION)
#define ATTNRES_EXPORT_ONE(SUFFIX, STORAGE, NAME, OPERATION)             \
  HWY_EXPORT(NAME##_##SUFFIX);                                           \
  void NAME(const OPERATION<STORAGE>& op, int64_t first, int64_t last) { \
    HWY_DYNAMIC_DISPATCH(NAME##_##SUFFIX)(op, first, last);              \
  }
#define ATTNRES_EXPORT_WITH_SUMS(NAME, OPERATION) \
  ATTNRES_FOR_STORAGE_TYPES(ATTNRES_EXPORT_ONE_WITH_SUMS, NAME, OPERATION)
#define ATTNRES_EXPORT_ONE_WITH_SUMS(SUFFIX, STORAGE, NAME, OPERATION)                           \
  HWY_EXPORT(NAME##_##SUFFIX);                                                                   \
  void NAME(const OPERATION<STORAGE>& op, int64_t first, int64_t last, Compute<STORAGE>* sums) { \
    HWY_DYNAMIC_DISPATCH(NAME##_##SUFFIX)(op, first, last, sums);                                \
  }
