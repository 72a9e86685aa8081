// What attention will read soon, prefetched while it multiplies.
#pragma once

#include "base/bounds.hpp"
#include "base/cache.hpp"
#include "kernels/attention_heads.hpp"
#include "kernels/gemm.hpp"

namespace simdformer::SF_ISA {

// `count` rows of `bytes` bytes: `stride` apart within pages, of which there may be one.
struct PrefetchedRows {
  const char* data;
  int64_t stride;
  const int64_t* table;  // the pages in order; null: they are
  int64_t page, page_stride;
  int64_t first, count, bytes;

  // Row i of the page at `place`.
  SF_INLINE const char* row(int64_t place, int64_t i) const {
    return data + (table != nullptr ? table[place] : place) * page_stride + i * stride;
  }
};

// Rows of up to four arrays: keys, values, queries and where the output goes. They are prefetched a few lines at a
// time within the products, to the second cache: memory then has all the time that these take, and no burst of
// prefetches stands before what is needed at once.
class Prefetches : public WithinTiles {
 public:
  SF_INLINE void add(const PrefetchedRows& rows) {
    if (rows.count <= 0) return;
    arrays_[arrays_count_++] = rows;
    left_ += rows.count * lines(rows);
  }

  // Keys or values [first, end) of a head.
  SF_INLINE void add(const Rows& rows, int64_t first, int64_t end, int64_t bytes) {
    if (rows.table == nullptr)
      add({rows.data + first * rows.stride, rows.stride, nullptr, end, 0, 0, end - first, bytes});
    else
      add({rows.data, rows.stride, rows.table, rows.page, rows.page_stride, first, end - first, bytes});
  }

  // The queries first + [0, count) of all heads of a group, or their places in the output.
  SF_INLINE void add(const View& view, const char* head, int64_t group, int64_t first, int64_t count) {
    add({head + first * row_stride(view), head_stride(view), nullptr, group, row_stride(view), 0,
         count * group, view.shape[view.rank - 1] * itemsize(view.dtype)});
  }

  // `times` calls are to prefetch `part` of `whole` of what is left.
  SF_INLINE void deal_out(int64_t part, int64_t whole, int64_t times) {
    each_ = (left_ * part + whole * times - 1) / (whole * times);
  }

  SF_INLINE void operator()() {
    for (int64_t n = each_; n > 0 && (line_ < end_ || next_row()); --n, line_ += kLineBytes)
      __builtin_prefetch(line_, 0, 2);
  }

 private:
  SF_INLINE static int64_t lines(const PrefetchedRows& rows) {
    return (rows.bytes + kLineBytes - 1) / kLineBytes;
  }

  // False when there is none.
  SF_INLINE bool next_row() {
    if (array_ == arrays_count_) return false;
    const PrefetchedRows& rows = arrays_[array_];
    if (taken_ == 0) place_ = rows.first / rows.page, row_ = rows.first % rows.page;
    line_ = rows.row(place_, row_);
    end_ = line_ + rows.bytes;
    left_ -= lines(rows);
    if (++row_ == rows.page) ++place_, row_ = 0;
    if (++taken_ == rows.count) ++array_, taken_ = 0;
    return true;
  }

  PrefetchedRows arrays_[4];
  int64_t arrays_count_ = 0, array_ = 0, taken_ = 0, left_ = 0, each_ = 0;
  int64_t place_ = 0, row_ = 0;  // of the row that comes next: its page, and where it is in that
  const char *line_ = nullptr, *end_ = nullptr;  // of the row that is prefetched: what is left
};

// Rows that are read next, prefetched a line of the cache at a time, in the order in which they lie and as fast as
// others are read now. A burst of prefetches waits for room among those that are under way, and nothing is computed
// meanwhile; without them memory rests. (From memory, one thread of a Zen 5: loops that multiply four rows by what
// they read take as long as plain reading, and 1.5 times as long when they prefetch whole rows at a time.)
class LinesAhead {
 public:
  // The rows from *row to before *end. What is read now is read by `readers`, one after the other.
  SF_INLINE LinesAhead(const char* const* row, const char* const* end, int64_t row_bytes, int64_t readers,
                       Cache goal)
      : row_(row),
        end_(end),
        row_bytes_(row_bytes),
        due_(row < end ? kLineBytes * readers : kNever),
        goal_(goal) {}

  // So many of the readers read `bytes` bytes. A line that reaches into the next row stands for both.
  SF_INLINE void follow(int64_t bytes, int64_t readers) {
    for (read_ += bytes * readers; read_ >= due_; read_ -= due_) {
      prefetch_to(goal_, *row_ + place_);
      for (place_ += kLineBytes; place_ >= row_bytes_; place_ -= row_bytes_) {
        if (++row_ < end_) continue;
        due_ = kNever;
        return;
      }
    }
  }

 private:
  static constexpr int64_t kNever = INT64_MAX;
  const char* const* row_;
  const char* const* end_;
  int64_t row_bytes_, place_ = 0;
  int64_t due_, read_ = 0;  // bytes times readers: a line is due at so many, and so many have been read
  Cache goal_;
};

// In its place, where all lies near.
struct NothingAhead {
  SF_INLINE NothingAhead(const char* const*, const char* const*, int64_t, int64_t, Cache) {}
  SF_INLINE void follow(int64_t, int64_t) {}
};

}  // namespace simdformer::SF_ISA
