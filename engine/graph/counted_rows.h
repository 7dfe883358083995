// An all_to_all that moves only some rows of each block: its input 1 is i32 [p, p], the number of rows that
// member i of the group sends to member j, which an all_gather has made. An exchange of whole blocks has no such input.
#pragma once

namespace trainctl {

// Attributes of the instruction.
inline constexpr const char* kRowElements = "row_elements";  ///< elements of a row
inline constexpr const char* kReversed = "reversed";         ///< member i sends counts[j, i] rows to j
/// Part of the bytes that is moved on average; each exchange of tokens has it, 1 if it moves whole blocks.
inline constexpr const char* kExpectedShare = "expected_share";
/// An all_gather of counts has it: a device sends them to its host, which waits for them before it starts the
/// exchanges.
inline constexpr const char* kHostReads = "host_reads";

}  // namespace trainctl
