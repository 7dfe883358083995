// The file in which choices of algorithms are kept.
#include "engine/ops/cuda/kept_choices.h"

#include <doctest/doctest.h>

#include <fstream>
#include <sstream>
#include <thread>
#include <vector>

#include "engine/base/cache_folder.h"

namespace trainctl {
namespace {

namespace fs = std::filesystem;

/// An empty folder, which is removed with all that is in it.
class Folder {
 public:
  Folder() {
    std::string name = (fs::temp_directory_path() / "choices.XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~Folder() { fs::remove_all(path_); }
  Folder(const Folder&) = delete;
  Folder& operator=(const Folder&) = delete;
  fs::path operator/(const char* name) const { return path_ / name; }

 private:
  fs::path path_;
};

std::string contents(const fs::path& file) {
  std::ostringstream text;
  text << std::ifstream(file).rdbuf();
  return text.str();
}

void write(const fs::path& file, const std::string& text) { std::ofstream(file) << text; }

std::string must_not_measure() {
  FAIL("measured");
  return "";
}

}  // namespace

TEST_CASE("a choice is measured once, and kept for other processes") {
  const Folder folder;
  const fs::path file = folder / "deep/in/products";
  KeptChoices first(file);
  CHECK(first.find("a") == std::nullopt);
  CHECK(first.find_or_make("a", "unkept", [] { return "seven"; }) == "seven");
  CHECK(first.find_or_make("a", "unkept", must_not_measure) == "seven");
  KeptChoices second(file);
  CHECK(second.find("a") == "seven");
  CHECK(second.find_or_make("a", "unkept", must_not_measure) == "seven");
  CHECK(second.find("b") == std::nullopt);
}

TEST_CASE("a process stays with its choices, whatever becomes of the file") {
  const Folder folder;
  const fs::path file = folder / "products";
  KeptChoices choices(file);
  choices.find_or_make("a", "unkept", [] { return "one"; });
  write(file, "a two.\n");
  CHECK(choices.find("a") == "one");
  fs::remove(file);
  CHECK(choices.find_or_make("a", "unkept", must_not_measure) == "one");
}

TEST_CASE("damaged lines are ignored, and what they chose is measured again") {
  const Folder folder;
  const fs::path file = folder / "products";
  for (const char* damage : {"a fo", "a four", "a", "a  four.", "a .", " four.", "a four. ", "\x01\xff garbage \x02"}) {
    CAPTURE(damage);
    write(file, std::string("b two.\n") + damage);
    KeptChoices choices(file);
    CHECK(choices.find("a") == std::nullopt);
    CHECK(choices.find("b") == "two");
    CHECK(choices.find_or_make("a", "unkept", [] { return "five"; }) == "five");
    CHECK(KeptChoices(file).find("a") == "five");
    CHECK(KeptChoices(file).find("b") == "two");
  }
}

TEST_CASE("the first of two lines for a key counts, for every process") {
  const Folder folder;
  const fs::path file = folder / "products";
  write(file, "a one.\na two.\n");
  CHECK(KeptChoices(file).find("a") == "one");
}

TEST_CASE("where nothing can be kept nothing is measured: each process takes the same default") {
  const Folder folder;
  write(folder / "file", "");
  for (const fs::path& path : {fs::path(), folder / "file/products"}) {
    KeptChoices choices(path);
    CHECK(choices.find_or_make("a", "unkept", must_not_measure) == "unkept");
    CHECK(choices.find("a") == "unkept");
  }
}

TEST_CASE("ranks that start together measure once and choose alike") {
  const Folder folder;
  const fs::path file = folder / "products";
  std::vector<std::string> chosen(8);
  std::vector<int> measured(8);
  {
    std::vector<std::jthread> ranks;
    for (size_t rank = 0; rank < chosen.size(); ++rank) {
      ranks.emplace_back([&, rank] {
        KeptChoices choices(file);  // as in a process of its own: the lock is the file's
        chosen[rank] = choices.find_or_make("a", "unkept", [&] {
          measured[rank] = 1;
          return "of" + std::to_string(rank);
        });
      });
    }
  }
  int times = 0;
  for (size_t rank = 0; rank < chosen.size(); ++rank) {
    CHECK(chosen[rank] == chosen[0]);
    times += measured[rank];
  }
  CHECK(times == 1);
  CHECK(contents(file) == "\na " + chosen[0] + ".\n");
}

TEST_CASE("choices are kept under XDG_CACHE_HOME, or else in ~/.cache") {
  const auto set = [](const char* name, const std::string& value) { ::setenv(name, value.c_str(), 1); };
  const char* const home = std::getenv("HOME");
  const char* const cache = std::getenv("XDG_CACHE_HOME");
  const std::string home_before = home != nullptr ? home : "", cache_before = cache != nullptr ? cache : "";
  set("HOME", "/home/one");
  set("XDG_CACHE_HOME", "/caches");
  CHECK(cache_folder() == "/caches/trainctl");
  set("XDG_CACHE_HOME", "");
  CHECK(cache_folder() == "/home/one/.cache/trainctl");
  set("HOME", "");
  CHECK(cache_folder() == "");
  set("HOME", home_before);
  set("XDG_CACHE_HOME", cache_before);
}

}  // namespace trainctl
