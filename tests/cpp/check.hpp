// As little of a test framework as the tests need:
//
//   TEST(softmax_of_one_element_is_1) { CHECK(a == b); CHECK_EQUAL(c, 3); }
//
// A check that fails ends its test; what is printed then names the place, the values, and the Notes alive.
#pragma once

#include <sstream>
#include <string>
#include <vector>

namespace simdformer::tests {

struct Test {
  std::string file, name;  // file: without folder and extension
  void (*run)();
};

// Adds a test at the start of the program, in the order of the files' lines.
struct Registration {
  Registration(const char* file, const char* name, void (*run)());
};

#define TEST(name)                                                                               \
  static void name();                                                                            \
  static const ::simdformer::tests::Registration registration_of_##name(__FILE__, #name, &name); \
  static void name()

// Says in which case of a table we are: `const Note note("isa avx2, n 17");`
class Note {
 public:
  explicit Note(const std::string& text);
  ~Note();
  Note(const Note&) = delete;
  Note& operator=(const Note&) = delete;
};

[[noreturn]] void fail(const char* file, int line, const std::string& text);

#define CHECK(condition)                                                         \
  do {                                                                           \
    if (!(condition)) ::simdformer::tests::fail(__FILE__, __LINE__, #condition); \
  } while (false)

template <class Found, class Wanted>
void check_equal(const char* file, int line, const char* text, const Found& found, const Wanted& wanted) {
  if (found == wanted) return;
  std::ostringstream out;
  out << text << " is " << found << ", wanted " << wanted;
  fail(file, line, out.str());
}

#define CHECK_EQUAL(found, wanted) ::simdformer::tests::check_equal(__FILE__, __LINE__, #found, found, wanted)

// The expression must throw an Exception.
#define CHECK_THROWS(expression, Exception)                                                          \
  do {                                                                                               \
    bool thrown = false;                                                                             \
    try {                                                                                            \
      static_cast<void>(expression);                                                                 \
    } catch (const Exception&) {                                                                     \
      thrown = true;                                                                                 \
    }                                                                                                \
    if (!thrown) ::simdformer::tests::fail(__FILE__, __LINE__, #expression " threw no " #Exception); \
  } while (false)

// "a 1, b 2" of ("a", 1, "b", 2)
template <class... Parts>
std::string words(const Parts&... parts) {
  std::ostringstream out;
  int i = 0;
  ((out << (i == 0 ? "" : i % 2 == 0 ? ", " : " ") << parts, ++i), ...);
  return out.str();
}

}  // namespace simdformer::tests
