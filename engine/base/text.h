// Words and numbers in readable form: nearest names, byte counts, joined lists.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

/// The candidate with the smallest edit distance to `word`, or "" when none is near (distance above
/// a third of the word's length, at least 2).
std::string nearest(std::string_view word, const std::vector<std::string>& candidates);

/// Edit distance with transpositions (optimal string alignment).
int edit_distance(std::string_view a, std::string_view b);

/// "did you mean 'x'?" or "" when nothing is near.
std::string did_you_mean(std::string_view word, const std::vector<std::string>& candidates);

/// 262144 -> "256.0 KiB"; below 1 KiB "512 B".
std::string format_bytes(int64_t bytes);

/// 262144 -> "262,144".
std::string with_commas(int64_t value);

/// 1, "rank" -> "1 rank"; 1024 -> "1,024 ranks".
std::string plural(int64_t count, std::string_view what);

/// "a, b, c".
std::string join(const std::vector<std::string>& words, std::string_view separator = ", ");

/// [2, 3] -> "[2, 3]".
std::string format_list(const std::vector<int64_t>& values);

/// A to Z become a to z; other bytes, such as those of UTF-8, stay as they are.
constexpr char lower_case(char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }
std::string lower_case(std::string text);

/// Shell-style match: * any run of characters, ? one character.
bool glob_match(std::string_view pattern, std::string_view text);
bool is_glob(std::string_view text);

/// FNV-1a: stable over machines and runs, unlike std::hash.
uint64_t stable_hash(std::string_view text);

/// Replaces every occurrence of `what`, which is not empty, in `text`. Text that was inserted is not searched again.
void replace_all(std::string& text, std::string_view what, std::string_view with);

}  // namespace trainctl
