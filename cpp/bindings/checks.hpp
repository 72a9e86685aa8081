// Every check of an argument that is not about memory (arrays.hpp): kinds and ranges of numbers, mixtures of
// dtypes, shapes. Each raises with the function, the argument, what was found, what is needed and what to do.
#pragma once

#include "bindings/arrays.hpp"

namespace simdformer {

// ---- numbers --------------------------------------------------------------------------------------------

double read_real(const Arg& arg, py::handle object);  // any real number, bool excepted
double read_finite(const Arg& arg, py::handle object);
double read_positive(const Arg& arg, py::handle object);      // > 0 and finite
double read_non_negative(const Arg& arg, py::handle object);  // >= 0 and finite
int64_t read_integer(const Arg& arg, py::handle object);      // int or anything with __index__, bool excepted
int64_t read_length(const Arg& arg, py::handle object);       // of these >= 0
bool read_flag(const Arg& arg, py::handle object);            // bool, numpy's too

// One of `names` (null-terminated); its place.
int read_name(const Arg& arg, py::handle object, const char* const* names);

// An axis of `rank` axes; negative ones count from the end.
int read_axis(const Arg& arg, py::handle object, int rank);

// a + b, a * b; ValueError "arg is too large" instead of a wrapped result.
int64_t checked_add(const Arg& arg, int64_t a, int64_t b);
int64_t checked_multiply(const Arg& arg, int64_t a, int64_t b);

// ---- dtypes ---------------------------------------------------------------------------------------------

// A parameter beside x: the same dtype, or 16-bit beside float32, or float32 beside 16-bit.
void check_parameter_dtype(const Arg& arg, DType dtype, const Arg& x_arg, DType x);

// Parameters beside one another: float16 and bfloat16 never meet.
void check_not_both_16_bit(const Arg& arg, DType dtype, const Arg& other_arg, DType other);

// Arguments that have to agree: key and value, gate and up.
void check_same_dtype(const Arg& arg, DType dtype, const Arg& other_arg, DType other);

// ---- shapes ---------------------------------------------------------------------------------------------

void check_rank_at_least(const Arg& arg, const View& view, int rank, const char* axes);
void check_rank(const Arg& arg, const View& view, int rank, const char* axes);
void check_same_shape(const Arg& arg, const View& view, const Arg& other_arg, const View& other);

// A vector of `length` elements; `why` says where that number comes from.
void check_vector(const Arg& arg, const View& view, int64_t length, const char* why);

// `count` of a weight's `rows`, from `first` on: whole panels, but at the end.
void check_piece(const Arg& arg, int64_t count, int64_t first, int64_t rows);

}  // namespace simdformer
