// Data sets of Megatron-LM.
#include "engine/train/data/tables/megatron.h"

#include <fmt/format.h>

#include <cstring>
#include <filesystem>

#include "engine/base/error.h"
#include "engine/base/text.h"
#include "engine/train/files/input_file.h"

namespace trainctl {
namespace {

constexpr std::string_view kMegatronMagic("MMIDIDX\0\0", 9);
constexpr uint64_t kMegatronHeaderBytes = 34;

TokenType type_of_code(uint8_t code, const std::string& file) {
  switch (code) {
    case 1:
      return TokenType::u8;
    case 2:
      return TokenType::i8;
    case 3:
      return TokenType::i16;
    case 4:
      return TokenType::i32;
    case 5:
      return TokenType::i64;
    case 8:
      return TokenType::u16;
    default:
      throw EnvError(fmt::format("{}: byte 17: {} is not the type of tokens; expected 1, 2, 3, 4, 5 or 8", file, code));
  }
}

std::vector<uint8_t> read_index_bytes(const InputFile& file) {
  std::vector<uint8_t> bytes(static_cast<size_t>(file.bytes()));
  if (!bytes.empty()) file.read(0, bytes);
  return bytes;
}

bool is_megatron(std::span<const uint8_t> bytes) {
  return bytes.size() >= kMegatronMagic.size() &&
         std::memcmp(bytes.data(), kMegatronMagic.data(), kMegatronMagic.size()) == 0;
}

std::string with_suffix(const std::string& path, const char* suffix) {
  return std::filesystem::path(path).replace_extension(suffix).string();
}

StoredElement stored_tokens(TokenType type) {
  constexpr StoredElement kStored[] = {StoredElement::u8, StoredElement::u16, StoredElement::i32,
                                       StoredElement::i8, StoredElement::i16, StoredElement::i64};
  return kStored[static_cast<size_t>(type)];
}

class MegatronTable final : public TableFile {
 public:
  explicit MegatronTable(const std::string& path) : bin_(with_suffix(path, ".bin")) {
    index_ = parse_megatron_index(read_index_bytes(InputFile(path)), path);
    (void)index_.format(bin_.bytes(), bin_.path());
    columns_ = {{"tokens", ColumnKind::number, stored_tokens(index_.type), {-1}}};
  }

  int64_t size() const override { return static_cast<int64_t>(index_.documents.size()); }
  const std::vector<TableColumn>& columns() const override { return columns_; }
  std::string where(int64_t row) const override { return fmt::format("{}: document {}", bin_.path(), row); }
  int64_t memory_bytes() const override {
    return static_cast<int64_t>(index_.documents.size() * sizeof(MegatronDocument));
  }
  void expect(int64_t row) const override {
    const MegatronDocument& document = index_.documents[static_cast<size_t>(row)];
    bin_.expect(document.at * byte_size(index_.type), document.count * byte_size(index_.type));
  }

  void read(int64_t row, std::span<const size_t> columns, std::span<TableValue> out) const override {
    const MegatronDocument& document = index_.documents[static_cast<size_t>(row)];
    for (size_t i = 0; i < columns.size(); ++i) {
      out[i].is_null = false;
      out[i].shape = {document.count};
      out[i].bytes.resize(static_cast<size_t>(document.count * byte_size(index_.type)));
      if (document.count > 0) bin_.read(document.at * byte_size(index_.type), out[i].bytes);
    }
  }

 private:
  InputFile bin_;
  MegatronIndex index_;
  std::vector<TableColumn> columns_;
};

}  // namespace

TokenFormat MegatronIndex::format(int64_t bytes, const std::string& file) const {
  const int64_t expected = tokens * byte_size(type);
  if (bytes != expected)
    throw EnvError(fmt::format("{}: has {} bytes, but the {} tokens of {} in {} need {}; get both files again", file,
                               with_commas(bytes), with_commas(tokens), to_string(type), path, with_commas(expected)));
  return {type, false, tokens};
}

MegatronIndex parse_megatron_index(std::span<const uint8_t> bytes, const std::string& file) {
  const auto fail = [&](const std::string& what) { throw EnvError(file + ": " + what + "; get the file again"); };
  if (!is_megatron(bytes) || bytes.size() < kMegatronHeaderBytes) fail("is not an index of Megatron");
  const auto load = [&]<class T>(uint64_t at, T value) {
    std::memcpy(&value, bytes.data() + at, sizeof value);
    return value;
  };
  if (const auto version = load(9, uint64_t{}); version != 1) fail(fmt::format("has version {}, expected 1", version));
  MegatronIndex index{file, type_of_code(bytes[17], file), 0, {}};
  const auto sequences = load(18, uint64_t{}), documents = load(26, uint64_t{});
  const uint64_t rest = bytes.size() - kMegatronHeaderBytes;
  if (sequences > rest / 12 || documents > rest / 8 || sequences * 12 + documents * 8 > rest)
    fail(fmt::format("counts {} sequences and {} documents, which exceed its {} bytes", sequences, documents,
                     bytes.size()));
  const uint64_t lengths = kMegatronHeaderBytes, places = lengths + 4 * sequences, firsts = places + 8 * sequences;
  const int64_t width = byte_size(index.type);
  std::vector<int64_t> ends{0};  // tokens before each sequence
  for (uint64_t s = 0; s < sequences; ++s) {
    const auto length = load(lengths + 4 * s, int32_t{});
    if (length < 0 || load(places + 8 * s, int64_t{}) != ends.back() * width)
      fail(fmt::format("sequence {} does not follow the one before it", s));
    ends.push_back(ends.back() + length);
  }
  index.tokens = ends.back();
  for (uint64_t d = 0; d + 1 < documents; ++d) {
    const auto begin = load(firsts + 8 * d, uint64_t{}), end = load(firsts + 8 * (d + 1), uint64_t{});
    if (begin > end || end > sequences) fail(fmt::format("document {} has sequences that do not exist", d));
    index.documents.push_back({ends[begin], ends[end] - ends[begin]});
  }
  return index;
}

std::optional<MegatronIndex> megatron_index_of(const std::string& bin) {
  const std::string path = with_suffix(bin, ".idx");
  if (!bin.ends_with(".bin") || !path_exists(path)) return {};
  const InputFile file(path);
  std::vector<uint8_t> start(static_cast<size_t>(std::min<int64_t>(file.bytes(), 9)));
  if (!start.empty()) file.read(0, start);
  if (!is_megatron(start)) return {};
  return parse_megatron_index(read_index_bytes(file), path);
}

std::unique_ptr<TableFile> open_megatron(const std::string& index) { return std::make_unique<MegatronTable>(index); }

}  // namespace trainctl
