// What a model reads next. The calls of a forward pass come in the same order for every token, so that the one
// that came after a call is the one that will: what it read is remembered, and fetched by workers of the pool
// that wait for it.
#pragma once

#include <cstdint>

#include "base/tuning.hpp"

namespace simdformer {

struct Region {
  const char* data = nullptr;
  int64_t bytes = 0;
};

// What a call reads: the first few regions, in the order in which threads share them.
class Reading {
 public:
  void add(const void* data, int64_t bytes) {
    if (count_ < kMost && bytes > 0) regions_[count_++] = {static_cast<const char*>(data), bytes};
  }
  const Region* begin() const { return regions_; }
  const Region* end() const { return regions_ + count_; }
  int count() const { return count_; }

 private:
  static constexpr int kMost = 4;
  Region regions_[kMost];
  int count_ = 0;
};

// Which reading came after which. Where two share a place, the later one is remembered.
class Successors {
 public:
  // `now`, not empty, comes after the reading of the last call. Returns what came after `now` before: nothing,
  // where that is not known.
  const Reading& follow(const Reading& now) {
    const char* const key = now.begin()->data;
    place_of(before_) = {before_, now};
    before_ = key;
    const Entry& known = place_of(key);
    return known.key == key ? known.after : nothing_;
  }

 private:
  static constexpr int kPlaces = 1024;  // a model of 70 billion parameters reads 321 times for a token
  struct Entry {
    const char* key = nullptr;
    Reading after;
  };
  Entry& place_of(const char* key) {
    return entries_[(reinterpret_cast<uintptr_t>(key) >> 6) * 0x9e3779b97f4a7c15u >> 54];
  }
  static_assert(kPlaces == 1 << (64 - 54));

  Entry entries_[kPlaces];
  const char* before_ = nullptr;
  const Reading nothing_{};
};

// The share of thread `part` of `parts` in a reading, piece by piece: so much as may lie in its second cache.
class Errand {
 public:
  Errand() = default;
  Errand(const Reading& reading, int part, int parts) : reading_(reading) {
    int64_t all = 0;
    for (const Region& region : reading_) all += region.bytes;
    skip(all * part / parts);
    left_ = all * (part + 1) / parts - all * part / parts;
    if (left_ > kErrandBytes) left_ = kErrandBytes;
  }
  bool done() const { return left_ <= 0; }

  // The next piece, of kErrandPiece bytes at most.
  Region next() {
    const Region& region = reading_.begin()[region_];
    Region piece{region.data + at_, region.bytes - at_};
    if (piece.bytes > kErrandPiece) piece.bytes = kErrandPiece;
    if (piece.bytes > left_) piece.bytes = left_;
    left_ -= piece.bytes;
    skip(piece.bytes);
    return piece;
  }

 private:
  void skip(int64_t bytes) {
    at_ += bytes;
    for (; region_ < reading_.count() && at_ >= reading_.begin()[region_].bytes; ++region_)
      at_ -= reading_.begin()[region_].bytes;
  }

  Reading reading_;
  int region_ = 0;
  int64_t at_ = 0, left_ = 0;
};

}  // namespace simdformer
