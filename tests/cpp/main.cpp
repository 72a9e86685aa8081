// simdformer_tests [NAME...]: runs all tests, or those of the files or with the names given. 0 = all passed.
#include <cstdio>
#include <exception>
#include <string>
#include <vector>

#include "check.hpp"
#include "core/dispatch.hpp"

namespace simdformer::tests {
namespace {

struct Failure {
  std::string text;
};

std::vector<Test>& all_tests() {
  static std::vector<Test> tests;
  return tests;
}

std::vector<std::string>& notes() {
  static std::vector<std::string> texts;
  return texts;
}

// What went wrong, or nothing. The notes are gone by the time a foreign exception is caught.
std::string run(const Test& test) {
  try {
    test.run();
    return "";
  } catch (const Failure& failure) {
    return failure.text;
  } catch (const std::exception& error) {
    return std::string("an exception nobody waited for: ") + error.what();
  } catch (...) {
    return "an exception of a type nobody waited for";
  }
}

}  // namespace

Registration::Registration(const char* file, const char* name, void (*run)()) {
  std::string stem(file);
  stem.erase(0, stem.rfind('/') + 1);
  stem.resize(stem.rfind('.'));
  all_tests().push_back({stem, name, run});
}

Note::Note(const std::string& text) { notes().push_back(text); }
Note::~Note() { notes().pop_back(); }

void fail(const char* file, int line, const std::string& text) {
  std::string message = std::string(file) + ":" + std::to_string(line) + ": " + text;
  for (const std::string& note : notes()) message += "\n    in " + note;
  throw Failure{message};
}

}  // namespace simdformer::tests

int main(int argc, char** argv) {
  using namespace simdformer::tests;
  const std::vector<std::string> wanted(argv + 1, argv + argc);
  int count = 0, failed = 0;
  for (const Test& test : all_tests()) {
    bool chosen = wanted.empty();
    for (const std::string& name : wanted) chosen = chosen || name == test.file || name == test.name;
    if (!chosen) continue;
    ++count;
    const std::string problem = run(test);
    std::printf("%s %s: %s\n", problem.empty() ? "ok    " : "FAILED", test.file.c_str(), test.name.c_str());
    if (!problem.empty()) std::printf("  %s\n", problem.c_str());
    std::fflush(stdout);
    failed += !problem.empty();
  }
  std::string isas;
  for (const std::string& isa : simdformer::available_isas()) isas += " " + isa;
  std::printf("%d passed, %d failed; instruction sets:%s\n", count - failed, failed, isas.c_str());
  return failed == 0 && count > 0 ? 0 : 1;
}
