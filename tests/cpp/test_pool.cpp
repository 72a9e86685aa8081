// The thread pool and the scratch memory. ThreadSanitizer watches these tests too.
#include <atomic>
#include <chrono>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <stdexcept>
#include <thread>
#include <utility>
#include <vector>

#include "check.hpp"
#include "core/parallel.hpp"
#include "threads.hpp"

namespace simdformer::tests {
namespace {

// The interrupt hook for a scope.
class Hook {
 public:
  explicit Hook(bool (*hook)()) { set_interrupt_hook(hook); }
  ~Hook() { set_interrupt_hook(nullptr); }
};

void nap(int milliseconds) { std::this_thread::sleep_for(std::chrono::milliseconds(milliseconds)); }

}  // namespace

TEST(every_index_is_visited_once_in_chunks_of_the_grain) {
  for (const int threads : {1, 2, 3, 8})
    for (const int64_t count : {0, 1, 2, 63, 1000, 4097})
      for (const int64_t grain : {1, 3, 64, 5000}) {
        const Note note(words("threads", threads, "count", count, "grain", grain));
        const Threads setting(threads);
        std::vector<int> visits(static_cast<std::size_t>(count), 0);  // no atomics: each is one chunk's
        std::atomic<bool> cut_right{true};
        parallel_for(count, grain, [&](int64_t begin, int64_t end) {
          if (begin % grain != 0 || (end - begin != grain && end != count)) cut_right = false;
          for (int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(i)];
        });
        CHECK(cut_right);
        for (const int times : visits) CHECK_EQUAL(times, 1);
      }
}

TEST(no_index_means_no_call) {
  parallel_for(0, 1, [](int64_t, int64_t) { throw std::logic_error("called"); });
  parallel_for(-5, 1, [](int64_t, int64_t) { throw std::logic_error("called"); });
}

TEST(loops_are_whole_while_workers_are_kept_awake_or_not) {
  const Threads setting(4);
  may_sleep();  // without a stay_awake(): nothing
  for (int round = 0; round < 200; ++round) {
    if (round % 4 == 0) stay_awake();
    std::atomic<int> visited{0};
    parallel_for(64, 1, [&](int64_t begin, int64_t end) { visited += static_cast<int>(end - begin); });
    CHECK_EQUAL(visited.load(), 64);
    if (round % 4 == 2) may_sleep();
    if (round % 50 == 0) nap(1);  // longer than they wait
  }
}

TEST(a_grain_below_1_counts_as_1) {
  for (const int64_t grain : {int64_t{0}, int64_t{-3}, INT64_MIN}) {
    std::atomic<int> calls{0};
    parallel_for(5, grain, [&](int64_t, int64_t) { ++calls; });
    CHECK_EQUAL(calls.load(), 5);
  }
}

TEST(indices_near_the_end_of_64_bits_do_not_overflow) {
  const Threads setting(2);
  std::atomic<int64_t> last{0};
  std::atomic<int> calls{0};
  parallel_for(INT64_MAX, INT64_MAX / 2, [&](int64_t, int64_t end) {
    ++calls;
    if (end == INT64_MAX) last = end;
  });
  CHECK_EQUAL(calls.load(), 3);
  CHECK_EQUAL(last.load(), INT64_MAX);
}

TEST(an_exception_reaches_the_caller_and_the_pool_works_on) {
  for (const int threads : {1, 2, 5})
    for (const int64_t culprit : {0, 17, 199}) {
      const Note note(words("threads", threads, "culprit", culprit));
      const Threads setting(threads);
      CHECK_THROWS(parallel_for(200, 1,
                                [&](int64_t begin, int64_t) {
                                  if (begin == culprit) throw std::out_of_range("culprit");
                                }),
                   std::out_of_range);
      CHECK(sums_are_right());
    }
}

TEST(of_many_exceptions_one_arrives) {
  const Threads setting(4);
  for (int round = 0; round < 50; ++round)
    CHECK_THROWS(
        parallel_for(100, 1, [](int64_t begin, int64_t) { throw std::runtime_error(std::to_string(begin)); }),
        std::runtime_error);
  CHECK(sums_are_right());
}

TEST(a_nested_call_runs_on_its_caller) {
  const Threads setting(4);
  std::vector<int> visits(64 * 50, 0);
  std::atomic<bool> stayed{true};
  parallel_for(64, 1, [&](int64_t outer, int64_t) {
    const std::thread::id self = std::this_thread::get_id();
    parallel_for(50, 3, [&](int64_t begin, int64_t end) {
      if (std::this_thread::get_id() != self) stayed = false;
      for (int64_t i = begin; i < end; ++i) ++visits[static_cast<std::size_t>(outer * 50 + i)];
    });
  });
  CHECK(stayed);
  for (const int times : visits) CHECK_EQUAL(times, 1);
}

TEST(a_nested_exception_passes_through_both_loops) {
  const Threads setting(3);
  CHECK_THROWS(parallel_for(20, 1,
                            [](int64_t outer, int64_t) {
                              parallel_for(20, 1, [&](int64_t inner, int64_t) {
                                if (outer == 11 && inner == 5) throw std::domain_error("inner");
                              });
                            }),
               std::domain_error);
  CHECK(sums_are_right());
}

TEST(several_threads_are_used) {
  const Threads setting(3);
  std::mutex mutex;
  std::set<std::thread::id> seen;
  std::atomic<int> waiting{0};
  parallel_for(3, 1, [&](int64_t, int64_t) {
    {
      const std::lock_guard<std::mutex> lock(mutex);
      seen.insert(std::this_thread::get_id());
    }
    ++waiting;  // whoever has a chunk waits until all three are taken: by three threads, then
    for (int i = 0; i < 6000 && waiting < 3; ++i) nap(10);
  });
  CHECK_EQUAL(seen.size(), 3u);
}

TEST(calls_of_several_threads_at_once_do_not_disturb_each_other) {
  const Threads setting(4);
  std::atomic<int> wrong{0};
  std::vector<std::thread> callers;
  for (int i = 0; i < 6; ++i)
    callers.emplace_back([&] {
      for (int round = 0; round < 300; ++round) wrong += !sums_are_right();
    });
  for (std::thread& caller : callers) caller.join();
  CHECK_EQUAL(wrong.load(), 0);
}

TEST(the_number_of_threads_may_grow_and_shrink) {
  const Threads setting(1);
  for (const int threads : {1, 2, 16, 3, 40, 1, 2, 7, 5})
    for (int round = 0; round < 40; ++round) {
      set_num_threads(threads);
      CHECK_EQUAL(num_threads(), threads);
      CHECK(sums_are_right());
    }
}

TEST(the_number_of_threads_may_change_while_others_compute) {
  const Threads setting(2);
  std::atomic<bool> done{false};
  std::thread changer([&] {
    for (int i = 0; i < 200; ++i) {
      set_num_threads(1 + i * 7 % 12);
      nap(1);
    }
    done = true;
  });
  int wrong = 0;
  while (!done) wrong += !sums_are_right();
  changer.join();
  CHECK_EQUAL(wrong, 0);
}

TEST(the_number_of_threads_stays_within_its_range) {
  const Threads setting(1);
  for (const auto& [asked, got] : {std::pair{0, 1}, {-7, 1}, {5, 5}, {kMaxThreads + 1, kMaxThreads}}) {
    set_num_threads(asked);
    CHECK_EQUAL(num_threads(), got);
  }
  CHECK(default_num_threads() >= 1 && default_num_threads() <= kMaxThreads);
}

TEST(sleeping_workers_wake_up) {
  const Threads setting(4);
  for (int round = 0; round < 30; ++round) {
    nap(round % 3);  // longer than workers spin, or not at all
    CHECK(sums_are_right());
  }
}

// ---- the interrupt hook -----------------------------------------------------------------------------------

TEST(a_long_call_is_given_up_when_the_hook_says_so) {
  for (const int threads : {1, 3}) {
    const Note note(words("threads", threads));
    const Threads setting(threads);
    const Hook hook([] { return true; });
    std::atomic<int> chunks{0};
    CHECK_THROWS(parallel_for(100000, 1,
                              [&](int64_t, int64_t) {
                                ++chunks;
                                nap(1);
                              }),
                 Interrupted);
    CHECK(chunks < 100000);
    set_interrupt_hook(nullptr);
    CHECK(sums_are_right());
  }
}

TEST(the_hook_is_asked_on_the_calling_thread_and_not_in_nested_calls) {
  const Threads setting(3);
  static std::atomic<int> asked, elsewhere, nested;
  static thread_local bool is_caller, is_nested;
  asked = elsewhere = nested = 0;
  is_caller = true;
  const Hook hook([] {
    ++asked;
    elsewhere += !is_caller;
    nested += is_nested;
    return false;
  });
  for (int round = 0; round < 2; ++round)
    parallel_for(150, 1, [](int64_t, int64_t) {
      is_nested = true;
      parallel_for(3, 1, [](int64_t, int64_t) { nap(1); });
      is_nested = false;
    });
  is_caller = false;
  CHECK(asked > 0);
  CHECK_EQUAL(elsewhere.load(), 0);
  CHECK_EQUAL(nested.load(), 0);
}

// ---- scratch ----------------------------------------------------------------------------------------------

TEST(scratch_is_aligned_and_apart) {
  for (const int64_t bytes : {0, 1, 63, 64, 65, 4096, 5 << 20}) {
    const Note note(words("bytes", bytes));
    const Scratch outer(bytes), inner(bytes + 100);
    for (const Scratch* scratch : {&outer, &inner})
      CHECK_EQUAL(reinterpret_cast<uintptr_t>(scratch->as<char>()) % 64, 0u);
    std::memset(outer.as<char>(), 1, static_cast<std::size_t>(bytes));
    std::memset(inner.as<char>(), 2, static_cast<std::size_t>(bytes) + 100);
    for (int64_t i = 0; i < bytes; ++i) CHECK(outer.as<char>()[i] == 1);
  }
}

TEST(scratch_is_a_stack_that_remembers_its_height) {
  const auto use = [] {
    const Scratch a(1000), b(200000);
    const Scratch c(3 << 20);
    a.as<char>()[999] = b.as<char>()[199999] = c.as<char>()[(3 << 20) - 1] = 1;
    return std::pair{a.as<char>(), c.as<char>()};
  };
  use();
  const auto once = use(), again = use();
  CHECK(once == again);  // the arena has grown to what was needed, and stays where it is
}

TEST(scratch_beyond_what_is_kept_works) {
  constexpr int64_t kBytes = int64_t{80} << 20;
  for (int round = 0; round < 3; ++round) {
    const Scratch small(100), large(kBytes), more(100);
    large.as<char>()[0] = large.as<char>()[kBytes - 1] = small.as<char>()[99] = more.as<char>()[99] = 1;
  }
}

TEST(scratch_that_cannot_be_had_is_bad_alloc) {
  for (const int64_t bytes : {INT64_MAX, INT64_MAX - 63, INT64_MAX / 2}) {
    CHECK_THROWS(Scratch{bytes}, std::bad_alloc);
    const Scratch still_works(1000);
    still_works.as<char>()[999] = 1;
  }
}

TEST(each_thread_has_scratch_of_its_own) {
  const Threads setting(4);
  std::atomic<int> wrong{0};
  parallel_for(400, 1, [&](int64_t begin, int64_t) {
    const Scratch scratch(1000 + begin * 64);
    const char mark = static_cast<char>(begin);
    std::memset(scratch.as<char>(), mark, 1000);
    std::this_thread::yield();
    for (int i = 0; i < 1000; ++i) wrong += scratch.as<char>()[i] != mark;
  });
  CHECK_EQUAL(wrong.load(), 0);
}

}  // namespace simdformer::tests
