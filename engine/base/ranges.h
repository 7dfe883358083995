// Lists of numbers as ranges, for reports of many ranks.
//
//   text   = part {"," part}           one after the other
//   part   = range {"+" range}         all sums of a number of each, the first range slowest
//   range  = start [":" stop [":" step]]   the stop not included, as in Python
//
//   0:8                0,1,…,7
//   0:4096:8           0,8,…,4088
//   0:8:4+0:2          0,1,4,5
//   0:3,7              0,1,2,7
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

/// Numbers that are not negative, in this order.
std::string range_text(const std::vector<int>& numbers);
/// The numbers again.
std::vector<int> numbers_of(std::string_view ranges);

}  // namespace trainctl
