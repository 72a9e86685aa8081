// What comes next, and the part of it that each thread fetches.
#include <algorithm>
#include <atomic>
#include <memory>
#include <utility>
#include <vector>

#include "check.hpp"
#include "core/ahead.hpp"
#include "core/parallel.hpp"
#include "threads.hpp"

namespace simdformer::tests {
namespace {

Reading reading_of(const std::vector<Region>& regions) {
  Reading reading;
  for (const Region& region : regions) reading.add(region.data, region.bytes);
  return reading;
}

// Where the first region of a reading begins; null: there is none.
const char* start_of(const Reading& reading) {
  return reading.count() == 0 ? nullptr : reading.begin()->data;
}

}  // namespace

TEST(what_came_after_a_reading_comes_after_it_again) {
  const std::vector<char> memory(4096);
  const auto at = [&](int i) { return reading_of({{memory.data() + i * 64, 64}}); };
  const auto successors = std::make_unique<Successors>();
  const int order[] = {3, 1, 4, 60, 5, 9};
  for (const int i : order) CHECK(start_of(successors->follow(at(i))) == nullptr);
  for (int round = 0; round < 3; ++round)
    for (int i = 0; i < 6; ++i)
      CHECK(start_of(successors->follow(at(order[i]))) == start_of(at(order[(i + 1) % 6])));
  successors->follow(at(3));
  successors->follow(at(4));  // another order
  CHECK(start_of(successors->follow(at(60))) == start_of(at(5)));
  CHECK(start_of(successors->follow(at(3))) == start_of(at(4)));
}

TEST(a_reading_has_four_regions_at_most_and_none_that_is_empty) {
  const char memory[8] = {};
  Reading reading;
  for (int i = 0; i < 8; ++i) reading.add(memory + i, i % 2);
  reading.add(memory, 5);
  CHECK_EQUAL(reading.count(), 4);
  for (int i = 0; i < 4; ++i) CHECK(reading.begin()[i].data == memory + 2 * i + 1);
}

TEST(the_parts_of_all_threads_are_the_whole) {
  const std::vector<char> memory(200000);
  const Reading reading = reading_of({{memory.data() + 50000, 70001},
                                      {memory.data(), 13},
                                      {memory.data() + 13, 4096},
                                      {memory.data() + 150000, 50000}});
  for (const int parts : {1, 2, 3, 16}) {
    std::vector<std::pair<const char*, int64_t>> pieces;
    for (int part = 0; part < parts; ++part)
      for (Errand errand(reading, part, parts); !errand.done();) {
        const Region piece = errand.next();
        CHECK(piece.bytes > 0 && piece.bytes <= kErrandPiece);
        pieces.emplace_back(piece.data, piece.bytes);
      }
    std::size_t next = 0;
    for (const Region& region : reading)
      for (int64_t at = 0; at < region.bytes; at += pieces[next++].second) {
        CHECK(next < pieces.size());
        CHECK(pieces[next].first == region.data + at);
        CHECK(at + pieces[next].second <= region.bytes);
      }
    CHECK_EQUAL(next, pieces.size());
  }
}

TEST(a_thread_fetches_what_its_second_cache_can_hold) {
  const char* const data = "only its address counts";
  for (const int part : {0, 1}) {
    int64_t bytes = 0;
    const char* first = nullptr;
    for (Errand errand(reading_of({{data, 10 << 20}}), part, 2); !errand.done();) {
      const Region piece = errand.next();
      if (bytes == 0) first = piece.data;
      bytes += piece.bytes;
    }
    CHECK_EQUAL(bytes, kErrandBytes);
    CHECK(first == data + part * (5 << 20));
  }
  CHECK(Errand().done());
  CHECK(Errand(Reading(), 0, 2).done());
}

TEST(loops_are_whole_while_workers_fetch_what_may_be_gone) {
  const Threads setting(3);
  stay_awake();
  std::vector<std::unique_ptr<std::vector<int>>> arrays(7);
  for (int round = 0; round < 600; ++round) {
    auto& array = arrays[static_cast<std::size_t>(round) % arrays.size()];
    if (round % 5 == 0 || !array) array = std::make_unique<std::vector<int>>(60000 + round, round);
    Reading reading;
    reading.add(array->data(), static_cast<int64_t>(array->size() * sizeof(int)));
    std::atomic<int64_t> sum{0};
    parallel_for(
        static_cast<int64_t>(array->size()), 10000,
        [&](int64_t begin, int64_t end) {
          int64_t part = 0;
          for (int64_t i = begin; i < end; ++i) part += (*array)[static_cast<std::size_t>(i)];
          sum += part;
        },
        round % 3 == 0 ? nullptr : &reading);
    CHECK_EQUAL(sum.load(), static_cast<int64_t>(array->size()) * (*array)[0]);
  }
  may_sleep();
}

}  // namespace simdformer::tests
