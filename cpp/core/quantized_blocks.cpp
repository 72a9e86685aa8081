#include "core/quantized_blocks.hpp"

#include <cstring>

namespace simdformer {
namespace {

// The 16 numbers that four bits stand for, with 12 and 128 added.
constexpr uint8_t kE2M1[] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
constexpr uint8_t kBellCurve[] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

// How a block lies in a file is said once for both ways: a layout's fields() hands each bit of it to `move`, which takes
// it from a byte to a number of the block, or back. What they go to is zero before.
struct Reading {
  template <class Number>
  void operator()(const uint8_t& byte, int at, int bits, Number& number, int to) const {
    number = static_cast<Number>(number | static_cast<Number>((byte >> at & ((1 << bits) - 1)) << to));
  }
};
struct Writing {
  template <class Number>
  void operator()(uint8_t& byte, int at, int bits, const Number& number, int to) const {
    byte = static_cast<uint8_t>(byte | (number >> to & ((1u << bits) - 1)) << at);
  }
};

// ---- fields -----------------------------------------------------------------------------------------------

template <class Move, class Byte, class Number>
void whole_byte(Move move, Byte* p, Number& number) {
  move(p[0], 0, 8, number, 0);
}
template <class Move, class Byte, class Number>
void two_bytes(Move move, Byte* p, Number& number) {
  move(p[0], 0, 8, number, 0);
  move(p[1], 0, 8, number, 8);
}

// Bytes i < count hold code i in their low and code count + i in their high four bits.
template <class Move, class Byte>
void nibbles(Move move, Byte* p, int count, uint8_t* codes) {
  for (int i = 0; i < count; ++i) {
    move(p[i], 0, 4, codes[i], 0);
    move(p[i], 4, 4, codes[count + i], 0);
  }
}

// Bit i of 32 is bit `bit` of code i.
template <class Move, class Byte>
void bits_of_32(Move move, Byte* p, int bit, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) move(p[i / 8], i % 8, 1, codes[i], bit);
}

// Bit g of byte i < 32 is bit `bit` of code 32 g + i.
template <class Move, class Byte>
void bits_of_256(Move move, Byte* p, int bit, uint8_t* codes) {
  for (int g = 0; g < 8; ++g)
    for (int i = 0; i < 32; ++i) move(p[i], g, 1, codes[32 * g + i], bit);
}

// Bits 2r and 2r + 1 of byte 32 h + i are bits `bit` and `bit` + 1 of code 128 h + 32 r + i.
template <class Move, class Byte>
void pairs_of_256(Move move, Byte* p, int bit, uint8_t* codes) {
  for (int r = 0; r < 8; ++r)
    for (int i = 0; i < 32; ++i) move(p[r / 4 * 32 + i], r % 4 * 2, 2, codes[32 * r + i], bit);
}

// ---- layouts ----------------------------------------------------------------------------------------------

template <int inputs, int bytes>
struct Layout {
  static constexpr int kInputs = inputs, kBytes = bytes;
  // Between what a file holds and what a slice holds, the same in both directions.
  static void adjust(ColumnSpan&) {}
};

struct Q8_0 : Layout<32, 34> {
  template <class Move, class Byte>
  static void fields(Move move, Byte* p, ColumnSpan& block) {
    two_bytes(move, p, block.scales[0]);
    for (int i = 0; i < 32; ++i) whole_byte(move, p + 2 + i, block.codes[i]);
  }
  static void adjust(ColumnSpan& block) {
    for (int i = 0; i < 32; ++i) block.codes[i] ^= 0x80;
  }
};

// q4_0, q4_1, q5_0, q5_1, iq4_nl: a scale, perhaps a minimum, perhaps the fifth bits, then four of each code.
template <bool minimum, bool fifth>
struct Simple : Layout<32, 18 + 2 * minimum + 4 * fifth> {
  template <class Move, class Byte>
  static void fields(Move move, Byte* p, ColumnSpan& block) {
    two_bytes(move, p, block.scales[0]);
    if (minimum) two_bytes(move, p + 2, block.minimums[0]);
    p += minimum ? 4 : 2;
    if (fifth) bits_of_32(move, p, 4, block.codes);
    nibbles(move, fifth ? p + 4 : p, 16, block.codes);
  }
  static void adjust(ColumnSpan& block) {  // what is added in a file is subtracted in a slice
    if (minimum) block.minimums[0] ^= 0x8000;
  }
};

struct Mxfp4 : Layout<32, 17> {
  template <class Move, class Byte>
  static void fields(Move move, Byte* p, ColumnSpan& block) {
    whole_byte(move, p, block.scales[0]);
    nibbles(move, p + 1, 16, block.codes);
  }
};

// q4_k, q5_k: two factors, eight scales and eight minimums of six bits in 12 bytes
template <bool fifth>
struct SixBitScales : Layout<256, 144 + 32 * fifth> {
  template <class Move, class Byte>
  static void fields(Move move, Byte* p, ColumnSpan& block) {
    two_bytes(move, p, block.factor);
    two_bytes(move, p + 2, block.minimum_factor);
    Byte* const s = p + 4;
    for (int g = 0; g < 4; ++g) {
      move(s[g], 0, 6, block.scales[g], 0);
      move(s[g + 4], 0, 6, block.minimums[g], 0);
      move(s[g + 8], 0, 4, block.scales[g + 4], 0);
      move(s[g + 8], 4, 4, block.minimums[g + 4], 0);
      move(s[g], 6, 2, block.scales[g + 4], 4);
      move(s[g + 4], 6, 2, block.minimums[g + 4], 4);
    }
    if (fifth) bits_of_256(move, p + 16, 4, block.codes);
    for (int j = 0; j < 4; ++j) nibbles(move, p + (fifth ? 48 : 16) + 32 * j, 32, block.codes + 64 * j);
  }
};

struct Q6_K : Layout<256, 210> {
  template <class Move, class Byte>
  static void fields(Move move, Byte* p, ColumnSpan& block) {
    for (int h = 0; h < 2; ++h) nibbles(move, p + 64 * h, 64, block.codes + 128 * h);
    pairs_of_256(move, p + 128, 4, block.codes);
    for (int g = 0; g < 16; ++g) whole_byte(move, p + 192 + g, block.scales[g]);
    two_bytes(move, p + 208, block.factor);
  }
};

struct Q2_K : Layout<256, 84> {
  template <class Move, class Byte>
  static void fields(Move move, Byte* p, ColumnSpan& block) {
    for (int g = 0; g < 16; ++g) {
      move(p[g], 0, 4, block.scales[g], 0);
      move(p[g], 4, 4, block.minimums[g], 0);
    }
    pairs_of_256(move, p + 16, 0, block.codes);
    two_bytes(move, p + 80, block.factor);
    two_bytes(move, p + 82, block.minimum_factor);
  }
};

// Six bits of a scale are stored 32 too large.
template <int groups>
void subtract_32(ColumnSpan& block) {
  for (int g = 0; g < groups; ++g) block.scales[g] = static_cast<uint8_t>(block.scales[g] - 32);
}

struct Q3_K : Layout<256, 110> {
  template <class Move, class Byte>
  static void fields(Move move, Byte* p, ColumnSpan& block) {
    bits_of_256(move, p, 2, block.codes);
    pairs_of_256(move, p + 32, 0, block.codes);
    Byte* const s = p + 96;
    for (int g = 0; g < 16; ++g) {
      move(s[g % 8], g / 8 * 4, 4, block.scales[g], 0);
      move(s[8 + g % 4], g / 4 * 2, 2, block.scales[g], 4);
    }
    two_bytes(move, p + 108, block.factor);
  }
  static void adjust(ColumnSpan& block) { subtract_32<16>(block); }
};

struct Iq4_xs : Layout<256, 136> {
  template <class Move, class Byte>
  static void fields(Move move, Byte* p, ColumnSpan& block) {
    two_bytes(move, p, block.factor);
    for (int g = 0; g < 8; ++g) {
      move(p[2 + g / 4], g % 4 * 2, 2, block.scales[g], 4);
      move(p[4 + g / 2], g % 2 * 4, 4, block.scales[g], 0);
      nibbles(move, p + 8 + 16 * g, 16, block.codes + 32 * g);
    }
  }
  static void adjust(ColumnSpan& block) { subtract_32<8>(block); }
};

// ---- the table --------------------------------------------------------------------------------------------

template <class Layout>
void read(const uint8_t* bytes, int64_t first, ColumnSpan& span) {
  ColumnSpan block{};
  Layout::fields(Reading(), bytes, block);
  Layout::adjust(block);
  if (Layout::kInputs == kSpanInputs) {
    span = block;
    return;
  }
  std::memcpy(span.codes + first, block.codes, kBlockInputs);
  span.scales[first / kBlockInputs] = block.scales[0];
  span.minimums[first / kBlockInputs] = block.minimums[0];
}

template <class Layout>
void write(const ColumnSpan& span, int64_t first, uint8_t* bytes) {
  ColumnSpan block = span;
  if (Layout::kInputs != kSpanInputs) {
    std::memcpy(block.codes, span.codes + first, kBlockInputs);
    block.scales[0] = span.scales[first / kBlockInputs];
    block.minimums[0] = span.minimums[first / kBlockInputs];
  }
  Layout::adjust(block);
  std::memset(bytes, 0, Layout::kBytes);
  Layout::fields(Writing(), bytes, block);
}

template <class Layout>
constexpr QuantizedType type(const char* name, QuantizedFormat format) {
  return {name, Layout::kInputs, Layout::kBytes, format, read<Layout>, write<Layout>};
}

constexpr auto kF16 = ScaleKind::f16, kU8 = ScaleKind::f16_u8, kI8 = ScaleKind::f16_i8;

// name; scales, minimum, group, bits, offset, table
const QuantizedType kTypes[] = {
    type<Q8_0>("q8_0", {kF16, false, 32, 8, 128, nullptr}),
    type<Simple<false, false>>("q4_0", {kF16, false, 32, 4, 8, nullptr}),
    type<Simple<true, false>>("q4_1", {kF16, true, 32, 4, 0, nullptr}),
    type<Simple<false, true>>("q5_0", {kF16, false, 32, 5, 16, nullptr}),
    type<Simple<true, true>>("q5_1", {kF16, true, 32, 5, 0, nullptr}),
    type<Simple<false, false>>("iq4_nl", {kF16, false, 32, 4, 128, kBellCurve}),
    type<Mxfp4>("mxfp4", {ScaleKind::power_of_two, false, 32, 4, 12, kE2M1}),
    type<SixBitScales<false>>("q4_k", {kU8, true, 32, 4, 0, nullptr}),
    type<SixBitScales<true>>("q5_k", {kU8, true, 32, 5, 0, nullptr}),
    type<Q6_K>("q6_k", {kI8, false, 16, 6, 32, nullptr}),
    type<Q3_K>("q3_k", {kI8, false, 16, 3, 4, nullptr}),
    type<Q2_K>("q2_k", {kU8, true, 16, 2, 0, nullptr}),
    type<Iq4_xs>("iq4_xs", {kI8, false, 32, 4, 128, kBellCurve}),
};

}  // namespace

const QuantizedType* quantized_type(const char* name) {
  for (const QuantizedType& type : kTypes)
    if (std::strcmp(type.name, name) == 0) return &type;
  return nullptr;
}

}  // namespace simdformer
