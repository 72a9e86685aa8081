#include "core/quantised_blocks.hpp"

#include <cstring>

namespace simdformer {
namespace {

// The 16 numbers that four bits stand for, with 12 and 128 added.
constexpr uint8_t kE2M1[] = {12, 13, 14, 15, 16, 18, 20, 24, 12, 11, 10, 9, 8, 6, 4, 0};
constexpr uint8_t kBellCurve[] = {1, 24, 45, 63, 79, 93, 106, 118, 129, 141, 153, 166, 181, 197, 217, 241};

uint16_t load16(const uint8_t* p) { return static_cast<uint16_t>(p[0] | p[1] << 8); }
void store16(uint16_t value, uint8_t* p) {
  p[0] = static_cast<uint8_t>(value);
  p[1] = static_cast<uint8_t>(value >> 8);
}

// What is added in a file is subtracted in a slice.
constexpr uint16_t kSign = 0x8000;

// ---- bits -------------------------------------------------------------------------------------------------

// Bytes i < count hold code i in their low and code count + i in their high four bits.
void read_halves(const uint8_t* p, int count, uint8_t* codes) {
  for (int i = 0; i < count; ++i) {
    codes[i] = p[i] & 15;
    codes[count + i] = p[i] >> 4;
  }
}
void write_halves(const uint8_t* codes, int count, uint8_t* p) {
  for (int i = 0; i < count; ++i) p[i] = static_cast<uint8_t>((codes[i] & 15) | codes[count + i] << 4);
}

// Bit i of the number at p is bit `bit` of code i.
void read_bits(const uint8_t* p, int bit, uint8_t* codes) {
  for (int i = 0; i < 32; ++i) codes[i] |= static_cast<uint8_t>((p[i / 8] >> i % 8 & 1) << bit);
}
void write_bits(const uint8_t* codes, int bit, uint8_t* p) {
  std::memset(p, 0, 4);
  for (int i = 0; i < 32; ++i) p[i / 8] |= static_cast<uint8_t>((codes[i] >> bit & 1) << i % 8);
}

// Of 256 codes: bit g of byte i < 32 is bit `bit` of code 32 g + i.
void read_bits_of_256(const uint8_t* p, int bit, uint8_t* codes) {
  for (int g = 0; g < 8; ++g)
    for (int i = 0; i < 32; ++i) codes[32 * g + i] |= static_cast<uint8_t>((p[i] >> g & 1) << bit);
}
void write_bits_of_256(const uint8_t* codes, int bit, uint8_t* p) {
  std::memset(p, 0, 32);
  for (int g = 0; g < 8; ++g)
    for (int i = 0; i < 32; ++i) p[i] |= static_cast<uint8_t>((codes[32 * g + i] >> bit & 1) << g);
}

// Of 256 codes: bits 2r and 2r + 1 of byte 32 h + i are bits `bit` and `bit` + 1 of code 128 h + 32 r + i.
void read_pairs_of_256(const uint8_t* p, int bit, uint8_t* codes) {
  for (int r = 0; r < 8; ++r)
    for (int i = 0; i < 32; ++i)
      codes[32 * r + i] |= static_cast<uint8_t>((p[r / 4 * 32 + i] >> r % 4 * 2 & 3) << bit);
}
void write_pairs_of_256(const uint8_t* codes, int bit, uint8_t* p) {
  std::memset(p, 0, 64);
  for (int k = 0; k < 256; ++k)
    p[k / 128 * 32 + k % 32] |= static_cast<uint8_t>((codes[k] >> bit & 3) << k % 128 / 32 * 2);
}

// ---- blocks of 32 -----------------------------------------------------------------------------------------

void read_q8_0(const uint8_t* p, int64_t first, ColumnSpan& span) {
  span.scales[first / 32] = load16(p);
  for (int i = 0; i < 32; ++i) span.codes[first + i] = p[2 + i] ^ 0x80;
}
void write_q8_0(const ColumnSpan& span, int64_t first, uint8_t* p) {
  store16(static_cast<uint16_t>(span.scales[first / 32]), p);
  for (int i = 0; i < 32; ++i) p[2 + i] = span.codes[first + i] ^ 0x80;
}

// q4_0, q4_1, q5_0, q5_1, iq4_nl: a scale, perhaps a minimum, perhaps the fifth bits, then four of each code.
template <bool minimum, bool fifth>
void read_32(const uint8_t* p, int64_t first, ColumnSpan& span) {
  uint8_t* codes = span.codes + first;
  span.scales[first / 32] = load16(p);
  if (minimum) span.minimums[first / 32] = load16(p + 2) ^ kSign;
  p += minimum ? 4 : 2;
  read_halves(fifth ? p + 4 : p, 16, codes);
  if (fifth) read_bits(p, 4, codes);
}
template <bool minimum, bool fifth>
void write_32(const ColumnSpan& span, int64_t first, uint8_t* p) {
  const uint8_t* codes = span.codes + first;
  store16(static_cast<uint16_t>(span.scales[first / 32]), p);
  if (minimum) store16(static_cast<uint16_t>(span.minimums[first / 32]) ^ kSign, p + 2);
  p += minimum ? 4 : 2;
  write_halves(codes, 16, fifth ? p + 4 : p);
  if (fifth) write_bits(codes, 4, p);
}

void read_mxfp4(const uint8_t* p, int64_t first, ColumnSpan& span) {
  span.scales[first / 32] = p[0];
  read_halves(p + 1, 16, span.codes + first);
}
void write_mxfp4(const ColumnSpan& span, int64_t first, uint8_t* p) {
  p[0] = static_cast<uint8_t>(span.scales[first / 32]);
  write_halves(span.codes + first, 16, p + 1);
}

// ---- blocks of 256 ----------------------------------------------------------------------------------------

// q4_k, q5_k: two factors, eight scales and eight minimums of six bits in 12 bytes
template <bool fifth>
void read_k(const uint8_t* p, int64_t, ColumnSpan& span) {
  span.factor = load16(p);
  span.minimum_factor = load16(p + 2);
  const uint8_t* s = p + 4;
  for (int g = 0; g < 4; ++g) {
    span.scales[g] = s[g] & 63;
    span.minimums[g] = s[g + 4] & 63;
    span.scales[g + 4] = static_cast<uint32_t>((s[g + 8] & 15) | s[g] >> 6 << 4);
    span.minimums[g + 4] = static_cast<uint32_t>(s[g + 8] >> 4 | s[g + 4] >> 6 << 4);
  }
  for (int j = 0; j < 4; ++j) read_halves(p + (fifth ? 48 : 16) + 32 * j, 32, span.codes + 64 * j);
  if (fifth) read_bits_of_256(p + 16, 4, span.codes);
}
template <bool fifth>
void write_k(const ColumnSpan& span, int64_t, uint8_t* p) {
  store16(span.factor, p);
  store16(span.minimum_factor, p + 2);
  uint8_t* s = p + 4;
  for (int g = 0; g < 4; ++g) {
    s[g] = static_cast<uint8_t>(span.scales[g] | span.scales[g + 4] >> 4 << 6);
    s[g + 4] = static_cast<uint8_t>(span.minimums[g] | span.minimums[g + 4] >> 4 << 6);
    s[g + 8] = static_cast<uint8_t>((span.scales[g + 4] & 15) | span.minimums[g + 4] << 4);
  }
  for (int j = 0; j < 4; ++j) write_halves(span.codes + 64 * j, 32, p + (fifth ? 48 : 16) + 32 * j);
  if (fifth) write_bits_of_256(span.codes, 4, p + 16);
}

void read_q6_k(const uint8_t* p, int64_t, ColumnSpan& span) {
  for (int h = 0; h < 2; ++h) read_halves(p + 64 * h, 64, span.codes + 128 * h);
  read_pairs_of_256(p + 128, 4, span.codes);
  for (int g = 0; g < 16; ++g) span.scales[g] = p[192 + g];
  span.factor = load16(p + 208);
}
void write_q6_k(const ColumnSpan& span, int64_t, uint8_t* p) {
  for (int h = 0; h < 2; ++h) write_halves(span.codes + 128 * h, 64, p + 64 * h);
  write_pairs_of_256(span.codes, 4, p + 128);
  for (int g = 0; g < 16; ++g) p[192 + g] = static_cast<uint8_t>(span.scales[g]);
  store16(span.factor, p + 208);
}

void read_q2_k(const uint8_t* p, int64_t, ColumnSpan& span) {
  for (int g = 0; g < 16; ++g) {
    span.scales[g] = p[g] & 15;
    span.minimums[g] = p[g] >> 4;
  }
  std::memset(span.codes, 0, sizeof(span.codes));
  read_pairs_of_256(p + 16, 0, span.codes);
  span.factor = load16(p + 80);
  span.minimum_factor = load16(p + 82);
}
void write_q2_k(const ColumnSpan& span, int64_t, uint8_t* p) {
  for (int g = 0; g < 16; ++g) p[g] = static_cast<uint8_t>(span.scales[g] | span.minimums[g] << 4);
  write_pairs_of_256(span.codes, 0, p + 16);
  store16(span.factor, p + 80);
  store16(span.minimum_factor, p + 82);
}

// Six bits of a scale are stored 32 too large.
void read_q3_k(const uint8_t* p, int64_t, ColumnSpan& span) {
  std::memset(span.codes, 0, sizeof(span.codes));
  read_pairs_of_256(p + 32, 0, span.codes);
  read_bits_of_256(p, 2, span.codes);
  const uint8_t* s = p + 96;
  for (int g = 0; g < 16; ++g) {
    const int low = s[g % 8] >> g / 8 * 4 & 15, high = s[8 + g % 4] >> g / 4 * 2 & 3;
    span.scales[g] = static_cast<uint8_t>((low | high << 4) - 32);
  }
  span.factor = load16(p + 108);
}
void write_q3_k(const ColumnSpan& span, int64_t, uint8_t* p) {
  write_pairs_of_256(span.codes, 0, p + 32);
  write_bits_of_256(span.codes, 2, p);
  uint8_t* s = p + 96;
  std::memset(s, 0, 12);
  for (int g = 0; g < 16; ++g) {
    const uint32_t scale = (span.scales[g] + 32) & 63;
    s[g % 8] |= static_cast<uint8_t>((scale & 15) << g / 8 * 4);
    s[8 + g % 4] |= static_cast<uint8_t>(scale >> 4 << g / 4 * 2);
  }
  store16(span.factor, p + 108);
}

void read_iq4_xs(const uint8_t* p, int64_t, ColumnSpan& span) {
  span.factor = load16(p);
  const int high = load16(p + 2);
  for (int g = 0; g < 8; ++g) {
    const int scale = (p[4 + g / 2] >> g % 2 * 4 & 15) | (high >> 2 * g & 3) << 4;
    span.scales[g] = static_cast<uint8_t>(scale - 32);
    read_halves(p + 8 + 16 * g, 16, span.codes + 32 * g);
  }
}
void write_iq4_xs(const ColumnSpan& span, int64_t, uint8_t* p) {
  uint32_t high = 0;
  std::memset(p + 4, 0, 4);
  for (int g = 0; g < 8; ++g) {
    const uint32_t scale = (span.scales[g] + 32) & 63;
    p[4 + g / 2] |= static_cast<uint8_t>((scale & 15) << g % 2 * 4);
    high |= scale >> 4 << 2 * g;
    write_halves(span.codes + 32 * g, 16, p + 8 + 16 * g);
  }
  store16(span.factor, p);
  store16(static_cast<uint16_t>(high), p + 2);
}

// ---- the table --------------------------------------------------------------------------------------------

constexpr auto kF16 = ScaleKind::f16, kU8 = ScaleKind::f16_u8, kI8 = ScaleKind::f16_i8;

// name, block, bytes; scales, minimum, group, bits, offset, table; read, write
const QuantisedType kTypes[] = {
    {"q8_0", 32, 34, {kF16, false, 32, 8, 128, nullptr}, read_q8_0, write_q8_0},
    {"q4_0", 32, 18, {kF16, false, 32, 4, 8, nullptr}, read_32<false, false>, write_32<false, false>},
    {"q4_1", 32, 20, {kF16, true, 32, 4, 0, nullptr}, read_32<true, false>, write_32<true, false>},
    {"q5_0", 32, 22, {kF16, false, 32, 5, 16, nullptr}, read_32<false, true>, write_32<false, true>},
    {"q5_1", 32, 24, {kF16, true, 32, 5, 0, nullptr}, read_32<true, true>, write_32<true, true>},
    {"iq4_nl", 32, 18, {kF16, false, 32, 4, 128, kBellCurve}, read_32<false, false>, write_32<false, false>},
    {"mxfp4", 32, 17, {ScaleKind::power_of_two, false, 32, 4, 12, kE2M1}, read_mxfp4, write_mxfp4},
    {"q4_k", 256, 144, {kU8, true, 32, 4, 0, nullptr}, read_k<false>, write_k<false>},
    {"q5_k", 256, 176, {kU8, true, 32, 5, 0, nullptr}, read_k<true>, write_k<true>},
    {"q6_k", 256, 210, {kI8, false, 16, 6, 32, nullptr}, read_q6_k, write_q6_k},
    {"q3_k", 256, 110, {kI8, false, 16, 3, 4, nullptr}, read_q3_k, write_q3_k},
    {"q2_k", 256, 84, {kU8, true, 16, 2, 0, nullptr}, read_q2_k, write_q2_k},
    {"iq4_xs", 256, 136, {kI8, false, 32, 4, 128, kBellCurve}, read_iq4_xs, write_iq4_xs},
};

}  // namespace

const QuantisedType* quantised_type(const char* name) {
  for (const QuantisedType& type : kTypes)
    if (std::strcmp(type.name, name) == 0) return &type;
  return nullptr;
}

}  // namespace simdformer
