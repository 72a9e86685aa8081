// The primitives of isa/isa.hpp as functions on arrays, for test_primitives.cpp: primitives.cpp is compiled once for
// each instruction set, as the kernels are, and only a table leaves it.
#pragma once

#include <cstdint>

namespace simdformer::tests {

// Arrays of whole registers; what their elements are, a primitive's name says, or its type. n: a number of elements,
// or whatever else a primitive is told.
struct Operands {
  const void *a, *b, *c;
  int64_t n;
  void* out;
};

struct Primitive {
  const char* name;
  void (*run)(const Operands&);
};

struct Primitives {
  const char* isa;
  int64_t floats, doubles;  // in a register
  bool has_fma, byte_dots, signed_dots, bf16_pairs;
  int table_size;
  double shifter;
  const Primitive* of_floats;  // each ends with an empty name
  const Primitive* of_doubles;
  const Primitive* others;
};

}  // namespace simdformer::tests
