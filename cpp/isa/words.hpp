// Parts of registers by way of 64-bit words, where loads and stores have no masks. Read by the headers of
// such instruction sets. A copy through memory would wait for its own stores.
#pragma once

namespace simdformer::SF_ISA {

// The first 0, 2, 4, 6 or 8 bytes at p, then zeros.
SF_INLINE uint64_t load_word(const char* p, int64_t bytes) {
  uint64_t word = 0;
  if (bytes >= 8) {
    std::memcpy(&word, p, 8);
    return word;
  }
  if (bytes & 2) {
    uint16_t last;
    std::memcpy(&last, p + bytes - 2, 2);
    word = static_cast<uint64_t>(last) << (bytes & 4 ? 32 : 0);
  }
  if (bytes & 4) {
    uint32_t first;
    std::memcpy(&first, p, 4);
    word |= first;
  }
  return word;
}

SF_INLINE void store_word(char* p, int64_t bytes, uint64_t word) {
  if (bytes >= 8) {
    std::memcpy(p, &word, 8);
    return;
  }
  if (bytes & 4) {
    std::memcpy(p, &word, 4);
    p += 4;
    word >>= 32;
  }
  if (bytes & 2) std::memcpy(p, &word, 2);
}

// The two words of 128 bits, and the first `bytes` <= 16 of them in memory; Bits128 is what the instruction
// set has for 128 bits.
SF_INLINE Bits128 load_words(const void* p, int64_t bytes) {
  const char* from = static_cast<const char*>(p);
  if (bytes <= 8) return from_words(load_word(from, bytes), 0);
  return from_words(load_word(from, 8), load_word(from + 8, bytes - 8));
}

SF_INLINE void store_words(void* p, int64_t bytes, Bits128 x) {
  char* to = static_cast<char*>(p);
  store_word(to, bytes, low_word(x));
  if (bytes > 8) store_word(to + 8, bytes - 8, high_word(x));
}

}  // namespace simdformer::SF_ISA
