// The file of an LMDB environment (data.mdb), read without its library, which trusts the file. A B+ tree of pages:
//
//   page    := u64 number  u16  u16 flags  u16 lower  u16 upper  u16 place{(lower - 16) / 2} … node …
//   meta    := page header  u32 0xBEEFC0DE  u32 1  u64  u64  db (free pages)  db (main)  u64 last page  u64 transaction
//   db      := u32  u16 flags  u16 depth  u64 branches  u64 leaves  u64 overflows  u64 entries  u64 root
//   branch  := u16 page_low  u16 page_middle  u16 page_high  u16 key_bytes  key
//   leaf    := u16 bytes_low  u16 bytes_high  u16 flags  u16 key_bytes  key  value, or the page of an overflow
//
// Pages 0 and 1 are metas; the one with the higher transaction counts. Takes bytes, so that it can be fuzzed.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace trainctl {

/// Both refer to the bytes of the file.
struct LmdbEntry {
  std::string_view key, value;
};

/// All entries of the main database, in the order of their keys. Throws EnvError, which begins with `file`, if the file
/// is damaged, or has databases with names or several values of a key.
std::vector<LmdbEntry> read_lmdb(std::span<const uint8_t> bytes, const std::string& file);

}  // namespace trainctl
