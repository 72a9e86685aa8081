// Codes of quantized weights: from planes of bits (base/quantized_args.hpp) to what is multiplied. Four
// successive inputs of a column are
//
//   two pairs of 16 bits: (0, 1) and (2, 3), or
//   four bytes: 0, 2, 1, 3, where the instruction set multiplies bytes (kByteDots), signed where it wants that
//
// A kind of codes is a struct: kUnit inputs share a scale; kPlanes says what taking them apart costs; kTurn
// fours lie in whole rows of words, and so do the next ones: a turn of a loop. pair(p, four, odd, table) is a
// pair of four `four` of the turn at p, bytes(p, four, table) its four bytes. kEightBits: codes go up to 255.
#pragma once

#include "kernels/quantized_scales.hpp"

namespace simdformer::SF_ISA {

// Something of four inputs 4 four, ... of the plane at p: `bits` bits in each byte of a word, moved to bit
// `to`.
template <int bits>
SF_INLINE CodeWords four_of_plane(const uint8_t* p, int four, int to = 0) {
  constexpr int kFours = 8 / bits;  // to a word
  constexpr uint32_t kMask = 0x01010101u * ((1u << bits) - 1);
  const CodeWords words = load_words_at(p + four / kFours * kWordRow);
  if constexpr (bits == 8) return words;
  const int from = four % kFours * bits;
  const CodeWords moved = from > to ? words >> (from - to) : from < to ? words << (to - from) : words;
  return moved & CodeWords(kMask << to);
}

// Bytes 0 and 2, or 1 and 3, of a word of four.
SF_INLINE CodeWords pair_of_four(CodeWords four, int odd) {
  return (odd ? four >> 8 : four) & CodeWords(0x00ff00ffu);
}

template <int bits, int unit>
struct Codes {
  static constexpr int kBits = bits, kUnit = unit;
  static constexpr bool kEightBits = bits == 8, kWidened = false;
  static constexpr int kLow = bits == 5 || bits == 6 ? 4 : bits == 3 ? 2 : bits;  // in the first plane
  static constexpr int kPlanes = kLow == bits ? 1 : 2;
  static constexpr int kTurn = 8 / (kPlanes == 1 ? bits : bits - kLow);
  SF_INLINE static CodeWords bytes(const uint8_t* p, int four, const uint8_t*) {
    const CodeWords low = four_of_plane<kLow>(p, four);
    if constexpr (kPlanes == 1)
      return low;
    else
      return low | four_of_plane<bits - kLow>(p + kWordRow * kLow * kTurn / 8, four, kLow);
  }
  SF_INLINE static CodeWords pair(const uint8_t* p, int four, int odd, const uint8_t* table) {
    if constexpr (kPlanes == 2) return pair_of_four(bytes(p, four, table), odd);
    constexpr uint32_t kMask = 0x00010001u * ((1u << bits) - 1);  // both steps at once
    constexpr int kFours = 8 / bits;
    const CodeWords words = load_words_at(p + four / kFours * kWordRow);
    return (words >> (odd * 8 + four % kFours * bits)) & CodeWords(kMask);
  }
};

// Four bits that stand for one of 16 numbers
struct TableCodes {
  static constexpr int kBits = 4, kUnit = 32, kPlanes = 1, kTurn = 2;
  static constexpr bool kEightBits = true, kWidened = false;
  SF_INLINE static CodeWords bytes(const uint8_t* p, int four, const uint8_t* table) {
    return look_up_bytes(table, four_of_plane<4>(p, four));
  }
  SF_INLINE static CodeWords pair(const uint8_t* p, int four, int odd, const uint8_t* table) {
    return pair_of_four(bytes(p, four, table), odd);
  }
};

// Codes of few bits, taken apart before: [8 fours][64 columns] words of bytes, or twice as many of pairs
template <int unit>
struct WideCodes {
  static constexpr int kBits = kByteDots ? 8 : 16, kUnit = unit, kPlanes = 1, kTurn = 1;
  static constexpr bool kEightBits = false, kWidened = true;
  SF_INLINE static CodeWords bytes(const uint8_t* p, int four, const uint8_t*) {
    return load_words_at(p + four * kWordRow);
  }
  SF_INLINE static CodeWords pair(const uint8_t* p, int four, int odd, const uint8_t*) {
    return load_words_at(p + (2 * four + odd) * kWordRow);
  }
};

// body(Codes<...>{}) for the codes of a format
template <class Body>
SF_INLINE void with_codes(const QuantizedFormat& format, Body&& body) {
  if (format.table != nullptr) return body(TableCodes{});
  switch (format.bits) {
    case 2:
      return body(Codes<2, 16>{});
    case 3:
      return body(Codes<3, 16>{});
    case 4:
      return body(Codes<4, 32>{});
    case 5:
      return body(Codes<5, 32>{});
    case 6:
      return body(Codes<6, 16>{});
    default:
      return body(Codes<8, 32>{});
  }
}

// Bytes of a turn
template <class Kind>
constexpr int kTurnBytes = kWordRow * Kind::kBits * Kind::kTurn / 8;

// Four codes of every column, as they are multiplied.
constexpr int kFourWords = kByteDots ? 1 : 2;
struct FourCodes {
  CodeWords words[kFourWords];
};

template <class Kind>
SF_INLINE FourCodes four_codes(const uint8_t* p, int four, const uint8_t* table) {
  if constexpr (!kByteDots) {
    return {{Kind::pair(p, four, 0, table), Kind::pair(p, four, 1, table)}};
  } else {
    const CodeWords bytes = Kind::bytes(p, four, table);
    if constexpr (kSignedDots && Kind::kEightBits)
      return {{bytes ^ CodeWords(0x80808080u)}};
    else
      return {{bytes}};
  }
}

// What is added to codes, so that what is multiplied comes of them.
template <class Kind>
SF_INLINE int offset_of(int offset) {
  return kByteDots && kSignedDots && Kind::kEightBits ? offset - 128 : offset;
}

}  // namespace simdformer::SF_ISA
