// fork, before, after and in the middle of calls. (Emulators and ThreadSanitizer have troubles of their own
// with it; these tests are left out there.)
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <thread>

#include "check.hpp"
#include "threads.hpp"

namespace simdformer::tests {
namespace {

// The exit status of a child that ends with body()'s answer; a child that hangs is killed after a minute.
template <class Body>
int in_child(Body body) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(60);
    _exit(body() ? 0 : 1);
  }
  int status = -1;
  return waitpid(child, &status, 0) == child ? status : -1;
}

}  // namespace

TEST(the_child_of_a_fork_makes_a_pool_of_its_own) {
  const Threads setting(3);
  CHECK(sums_are_right());
  for (int round = 0; round < 5; ++round) CHECK_EQUAL(in_child([] { return sums_are_right(); }), 0);
  CHECK(sums_are_right());
}

TEST(a_fork_while_another_thread_computes_is_safe) {
  const Threads setting(3);
  std::atomic<bool> done{false};
  std::atomic<int> wrong{0};
  std::thread other([&] {
    while (!done) wrong += !sums_are_right();
  });
  for (int round = 0; round < 10; ++round) CHECK_EQUAL(in_child([] { return sums_are_right(); }), 0);
  done = true;
  other.join();
  CHECK_EQUAL(wrong.load(), 0);
}

TEST(a_grandchild_works_too) {
  const Threads setting(2);
  CHECK(sums_are_right());
  CHECK_EQUAL(in_child([] { return sums_are_right() && in_child([] { return sums_are_right(); }) == 0; }), 0);
}

}  // namespace simdformer::tests
