// How far ahead of their use slices of quantized weights are prefetched: what is faster on this machine.
#pragma once

#include "core/dispatch.hpp"

namespace simdformer {

// In bytes, for products that read so many of weights: kSliceBytesAhead, or 0, which leaves it to the hardware but
// touches a turn's lines in their order. Which one is faster from memory is measured by the first product that reads more
// than a second cache holds in a forward pass, or more than the last cache (1.5 ms, again when the instruction set
// changes). No result depends on it.
int64_t slice_ahead(const KernelTable& table, double bytes);

// The measurement: the faster of the two, from memory, one row of x and weights in q4_0.
int64_t measured_slice_ahead(const KernelTable& table);

}  // namespace simdformer
