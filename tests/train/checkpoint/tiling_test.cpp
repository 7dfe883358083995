// Compares the check of tilings with a count over all elements.
#include "engine/train/checkpoint/tiling.h"

#include <doctest/doctest.h>

#include <algorithm>
#include <ctime>
#include <random>

#include "tests/train/checkpoint/sample.h"

using namespace trainctl;

namespace {

std::string defect(const Shape& shape, const std::vector<Box>& boxes) {
  std::vector<const Box*> pointers;
  for (const Box& box : boxes) pointers.push_back(&box);
  return tiling_defect(shape, pointers);
}

bool contains(const Box& box, const Shape& place) {
  for (size_t d = 0; d < place.size(); ++d)
    if (place[d] < box.offset[d] || place[d] >= box.offset[d] + box.shape[d]) return false;
  return true;
}

/// Finds the same defect by looking at each element.
std::string counted_defect(const Shape& shape, const std::vector<Box>& boxes) {
  for (int64_t element = 0; element < num_elements(shape); ++element) {
    Shape place(shape.size());
    int64_t rest = element;
    for (size_t d = shape.size(); d-- > 0; rest /= shape[d]) place[d] = rest % shape[d];
    const auto covers = std::count_if(boxes.begin(), boxes.end(), [&](const Box& box) { return contains(box, place); });
    if (covers == 0) return "element " + to_string(place) + " is in no piece";
    if (covers > 1) return "element " + to_string(place) + " is in " + std::to_string(covers) + " pieces";
  }
  return "";
}

}  // namespace

TEST_CASE("boxes that tile a shape are accepted, whatever their cuts") {
  std::mt19937 random(7);
  for (const Shape& shape : {Shape{}, Shape{1}, Shape{50}, Shape{7, 9}, Shape{5, 6, 7}, Shape{3, 4, 3, 4}})
    for (int i = 0; i < 50; ++i) CHECK(defect(shape, random_tiling(shape, 1 + i, random)) == "");
}

TEST_CASE("a gap and an overlap are reported at the same element as by counting") {
  std::mt19937 random(8);
  int wrong = 0;
  for (int i = 0; i < 3000; ++i) {
    const Shape shape = i % 2 == 0 ? Shape{6, 5} : Shape{3, 4, 3};
    std::vector<Box> boxes = random_tiling(shape, 1 + i % 9, random);
    for (int change = 0; change <= i % 3; ++change) {  // several defects may cancel in volume
      const size_t one = random() % boxes.size();
      if (random() % 3 == 0) boxes.push_back(boxes[one]);
      if (random() % 3 == 0 && boxes.size() > 1) boxes.erase(boxes.begin() + static_cast<std::ptrdiff_t>(one));
      if (random() % 2 == 0) boxes[random() % boxes.size()] = random_box(shape, random);
    }
    const std::string expected = counted_defect(shape, boxes);
    wrong += !expected.empty();
    CHECK(defect(shape, boxes) == expected);
  }
  CHECK(wrong > 1000);
}

TEST_CASE("a gap and an overlap of the same size do not hide each other") {
  CHECK(defect({4}, {{{0}, {3}}, {{2}, {1}}}) == "element [2] is in 2 pieces");
  CHECK(defect({2, 2}, {{{0, 0}, {1, 2}}, {{0, 0}, {1, 2}}}) == "element [0, 0] is in 2 pieces");
}

TEST_CASE("a box is not empty, has the dims of its tensor and is inside it") {
  CHECK(defect({4}, {}) == "it has no pieces");
  CHECK(defect({4}, {{{0}, {4}}, {{4}, {0}}}) == "pieces[1]: offset [4] and shape [0] are not within [4]");
  CHECK(defect({4}, {{{-1}, {5}}}) == "pieces[0]: offset [-1] and shape [5] are not within [4]");
  CHECK(defect({4}, {{{2}, {INT64_MAX}}}) ==
        "pieces[0]: offset [2] and shape [9223372036854775807] are not within [4]");
  CHECK(defect({4}, {{{0, 0}, {4, 1}}}) == "pieces[0]: expected 1 dims, found offset [0, 0] and shape [4, 1]");
}

namespace {

/// The least seconds of this thread's processor that a check of side * side pieces takes: other processes do not count.
double least_seconds(int64_t side) {
  std::vector<Box> boxes;
  for (int64_t i = 0; i < side * side; ++i) boxes.push_back({{i / side * 16, i % side * 16}, {16, 16}});
  double least = 1e9;
  for (int i = 0; i < 10; ++i) {
    const auto now = [] {
      timespec time{};
      clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time);
      return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
    };
    const double begin = now();
    CHECK(defect({16 * side, 16 * side}, boxes) == "");
    least = std::min(least, now() - begin);
  }
  return least;
}

}  // namespace

TEST_CASE("the pieces of thousands of ranks are checked without a look at every pair of them") {
  CHECK(least_seconds(64) < 80 * least_seconds(16));  // 16 times the pieces, 256 times the pairs
  std::vector<Box> boxes;
  for (int64_t i = 0; i < 4096; ++i) boxes.push_back({{i / 64 * 16, i % 64 * 16}, {16, 16}});
  boxes[1000].offset[1] += 1;
  CHECK(defect({1024, 1024}, boxes) == "element [240, 640] is in no piece");
}
