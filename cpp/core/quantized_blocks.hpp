// The quantized types of GGUF: how the bytes of a block are cut into codes, scales and minimums, and put
// together again. What they mean: python/simdformer/quantization/blocks.py.
#pragma once

#include "base/quantized_args.hpp"

namespace simdformer {

// Up to 256 inputs of one column, as slices hold them.
struct ColumnSpan {
  uint8_t codes[kSpanInputs];       // offset added, or places in the table
  uint32_t scales[16];              // of the groups: bits of a float, or what multiplies the factor
  uint32_t minimums[16];            // likewise
  uint16_t factor, minimum_factor;  // f16
};

struct QuantizedType {
  const char* name;
  int block;   // inputs of a block: 32 or 256
  int nbytes;  // of a block
  QuantizedFormat format;
  // Block at `bytes` <-> inputs [first, first + block) of a span. Nothing is lost on the way.
  void (*read)(const uint8_t* bytes, int64_t first, ColumnSpan& span);
  void (*write)(const ColumnSpan& span, int64_t first, uint8_t* bytes);
};

// Null when there is none of that name.
const QuantizedType* quantized_type(const char* name);

}  // namespace simdformer
