// An all_to_all that moves only some rows of each block: its input 1 is i32 [p, p], the number of rows that
// member i of the group sends to member j. Members without transfers of variable sizes have no such input and move
// whole blocks.
#pragma once

namespace trainctl {

// Attributes of the instruction.
inline constexpr const char* kRowElements = "row_elements";      ///< elements of a row
inline constexpr const char* kReversed = "reversed";             ///< member i sends counts[j, i] rows to j
inline constexpr const char* kExpectedShare = "expected_share";  ///< part of the bytes that is moved on average

}  // namespace trainctl
