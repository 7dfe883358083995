// Sorted lists of numbers as ranges, such as 0-3.
#include "engine/base/ranges.h"

#include <doctest/doctest.h>

#include <random>

using namespace trainctl;

TEST_CASE("numbers as ranges: runs, sums of runs, and other lists") {
  CHECK(range_text({}) == "");
  CHECK(range_text({7}) == "7");
  CHECK(range_text({0, 1, 2, 3}) == "0:4");
  CHECK(range_text({3, 11, 19}) == "3:27:8");
  CHECK(range_text({0, 1, 8, 9, 16, 17}) == "0:24:8+0:2");
  CHECK(range_text({1, 2, 3, 9, 10, 11}) == "1:17:8+0:3");
  CHECK(range_text({0, 4, 2, 6}) == "0:4:2+0:8:4");  // in this order
  CHECK(range_text({0, 1, 2, 7}) == "0:3,7");
  CHECK(range_text({5, 0, 3}) == "5,0,3");
  CHECK(range_text({2, 9}) == "2:16:7");
}

TEST_CASE("ranges expand to the same numbers in the same order") {
  std::mt19937 random(1);
  for (int round = 0; round < 2000; ++round) {
    std::vector<int> numbers;
    const int steps[] = {1, 2, 3, 8};
    for (size_t n = random() % 12; numbers.size() < n;)
      numbers.push_back(numbers.empty() || random() % 5 == 0 ? static_cast<int>(random() % 50)
                                                             : numbers.back() + steps[random() % 4]);
    CAPTURE(range_text(numbers));
    CHECK(numbers_of(range_text(numbers)) == numbers);
  }
  std::vector<int> rows;
  for (int a = 0; a < 4096; a += 64)
    for (int b = 0; b < 16; b += 4)
      for (int c = 0; c < 2; ++c) rows.push_back(a + b + c);
  CHECK(range_text(rows) == "0:4096:64+0:16:4+0:2");
  CHECK(numbers_of("0:4096:64+0:16:4+0:2") == rows);
}
