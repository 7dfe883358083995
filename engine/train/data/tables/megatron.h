// Data sets of Megatron-LM: NAME.bin has the tokens of all documents, and NAME.idx says where they are.
//
//   idx  := "MMIDIDX\0\0"  u64 version  u8 type  u64 sequences  u64 documents
//           i32 length{sequences}  i64 byte{sequences}  i64 first_sequence{documents}
//   type := 1 uint8 | 2 int8 | 3 int16 | 4 int32 | 5 int64 | 6 float64 | 7 float32 | 8 uint16
//
// The version is 1; the last entry of first_sequence is the number of sequences. A data set of tokens reads the whole
// .bin file as one run of tokens; as a table, a document is a row with the column `tokens`.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "engine/train/data/tables/table_file.h"
#include "engine/train/data/token_file.h"

namespace trainctl {

/// Tokens [at, at + count) of the .bin file.
struct MegatronDocument {
  int64_t at = 0, count = 0;
};

struct MegatronIndex {
  std::string path;  ///< the .idx file
  TokenType type = TokenType::i32;
  int64_t tokens = 0;
  std::vector<MegatronDocument> documents;

  /// The format of the .bin file `file`, which has this many bytes. Throws EnvError if they are not those of the index.
  TokenFormat format(int64_t bytes, const std::string& file) const;
};

/// Throws EnvError, which begins with `file`, if the bytes are not such an index, or its places are not in order.
MegatronIndex parse_megatron_index(std::span<const uint8_t> bytes, const std::string& file);
/// The index of a .bin file; nothing if it has none. Throws the same errors as parse_megatron_index.
std::optional<MegatronIndex> megatron_index_of(const std::string& bin);
/// `index`: NAME.idx.
std::unique_ptr<TableFile> open_megatron(const std::string& index);

}  // namespace trainctl
