// Files of tokens, as nanoGPT, llm.c and Megatron (tables/megatron.h) write them.
#include "engine/train/data/token_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <limits>
#include <set>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

static_assert(std::endian::native == std::endian::little, "token files are little-endian");

struct Kind {
  int32_t magic, version;
  TokenType type;
};
constexpr Kind kKinds[] = {{20240520, 1, TokenType::u16}, {20240801, 7, TokenType::i32}};

[[noreturn]] void fail(const std::string& file, const std::string& what) { throw EnvError(file + ": " + what); }

int32_t word(std::span<const uint8_t> bytes, size_t index) {
  int32_t value = 0;
  if (bytes.size() >= (index + 1) * sizeof(value)) std::memcpy(&value, &bytes[index * sizeof(value)], sizeof(value));
  return value;
}

const Kind* kind_of(int32_t magic) {
  const auto* kind =
      std::find_if(std::begin(kKinds), std::end(kKinds), [&](const Kind& k) { return k.magic == magic; });
  return kind == std::end(kKinds) ? nullptr : kind;
}

/// Returns whether a file of llm.c has something other than tokens. The magic numbers of llm.c are the days on which a
/// format was made. Read as tokens, such a number would be 308 followed by a token above 54,000, which GPT-2 does not
/// have, then a version and 0.
bool is_other_file_of_llm_c(std::span<const uint8_t> start) {
  const int32_t magic = word(start, 0), version = word(start, 1);
  return magic > 20240100 && magic < 20260000 && version > 0 && version < 100 && kind_of(magic) == nullptr;
}

bool is_numpy(std::span<const uint8_t> start) {
  constexpr uint8_t kNumpyMagic[] = {0x93, 'N', 'U', 'M', 'P', 'Y'};
  return start.size() >= sizeof(kNumpyMagic) &&
         std::equal(std::begin(kNumpyMagic), std::end(kNumpyMagic), start.begin());
}

/// Describes a file that has no tokens, by its format; null if it may have some.
const char* foreign_format(std::span<const uint8_t> start) {
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  if (text.starts_with("MMIDIDX"))
    return "the index of a Megatron data set, whose tokens are in the .bin file next to it";
  uint64_t header_bytes = 0;  // of a safetensors file, whose header is JSON
  if (text.size() > sizeof header_bytes) std::memcpy(&header_bytes, start.data(), sizeof header_bytes);
  if (header_bytes > 0 && header_bytes < (uint64_t{100} << 20) && text.substr(8).starts_with("{\""))
    return "a safetensors file";
  constexpr size_t kLeast = 256;
  const auto is_of_text = [](char c) { return c == '\n' || c == '\r' || c == '\t' || (c >= ' ' && c <= '~'); };
  if (text.size() >= kLeast && std::all_of(text.begin(), text.end(), is_of_text)) return "a text file";
  return nullptr;
}

/// Returns whether the first tokens are 32-bit numbers below 2^16 that are not all equal.
bool looks_like_int32(std::span<const uint8_t> start) {
  constexpr size_t kLeast = 256;
  if (start.size() < kLeast) return false;
  std::set<uint16_t> low;
  for (size_t at = 0; at + 4 <= start.size(); at += 4) {
    if (start[at + 2] != 0 || start[at + 3] != 0) return false;
    low.insert(static_cast<uint16_t>(start[at] | start[at + 1] << 8));
  }
  constexpr size_t kMany = 16;
  return low.size() >= kMany;
}

TokenFormat parse_header(std::span<const uint8_t> start, int64_t file_bytes, const Kind& kind,
                         const std::string& file) {
  if (file_bytes < kTokenHeaderBytes)
    fail(file, fmt::format("starts like an llm.c file ({}), but has {} bytes, less than its header of {}; download "
                           "the file again",
                           kind.magic, with_commas(file_bytes), with_commas(kTokenHeaderBytes)));
  const int64_t version = word(start, 1), count = word(start, 2), width = byte_size(kind.type);
  if (version != kind.version)
    fail(file, fmt::format("byte 4: expected version {} of the llm.c token format ({}), found {}; write it again "
                           "with dev/data of llm.c, or with trainctl data tokens",
                           kind.version, kind.magic, version));
  const int64_t expected = kTokenHeaderBytes + count * width;
  if (count < 0 || file_bytes != expected)
    fail(file, fmt::format("byte 8: the header specifies {} tokens of {} bytes, {} bytes with the header, but the "
                           "file has {}; download the file again",
                           with_commas(count), width, with_commas(expected), with_commas(file_bytes)));
  return {kind.type, true, count};
}

template <class T>
void convert_tokens(const uint8_t* from, int64_t count, int32_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    T token;
    std::memcpy(&token, from + i * int64_t{sizeof(T)}, sizeof(T));
    out[i] = token;
  }
}

/// Converts tokens of 64 bits. A token that no int32 holds becomes -1, which no network has.
void convert_wide_tokens(const uint8_t* from, int64_t count, int32_t* out) {
  for (int64_t i = 0; i < count; ++i) {
    int64_t token = 0;
    std::memcpy(&token, from + i * int64_t{sizeof token}, sizeof token);
    out[i] = token < 0 || token > std::numeric_limits<int32_t>::max() ? -1 : static_cast<int32_t>(token);
  }
}

std::optional<int64_t> first_outside_wide(std::span<const uint8_t> body, int64_t below) {
  for (size_t i = 0; i < body.size() / sizeof(int64_t); ++i) {
    int64_t token = 0;
    std::memcpy(&token, body.data() + i * sizeof token, sizeof token);
    if (token < 0 || token >= below) return static_cast<int64_t>(i);
  }
  return {};
}

template <class T>
TokenRange range_as(std::span<const uint8_t> body) {
  const auto count = static_cast<int64_t>(body.size() / sizeof(T));
  if (count == 0) return {};
  T least = std::numeric_limits<T>::max(), most = std::numeric_limits<T>::lowest();
  for (int64_t i = 0; i < count; ++i) {
    T token;
    std::memcpy(&token, body.data() + i * int64_t{sizeof(T)}, sizeof(T));
    least = std::min(least, token);
    most = std::max(most, token);
  }
  return {least, most};
}

template <class T>
std::optional<int64_t> first_outside_as(std::span<const uint8_t> body, int64_t below) {
  constexpr int64_t kBlock = 4096;  // The maximum of a block of this size is found without branches.
  const auto count = static_cast<int64_t>(body.size() / sizeof(T));
  if (below > int64_t{std::numeric_limits<T>::max()}) return {};
  const auto at = [&](int64_t i) {
    T token;
    std::memcpy(&token, body.data() + i * int64_t{sizeof(T)}, sizeof(T));
    return token;
  };
  for (int64_t start = 0; start < count; start += kBlock) {
    const int64_t end = std::min(count, start + kBlock);
    T largest = 0;
    for (int64_t i = start; i < end; ++i) largest = std::max(largest, at(i));
    if (largest < below) continue;
    for (int64_t i = start;; ++i)
      if (at(i) >= below) return i;
  }
  return {};
}

/// Returns whether the file is an IDX file such as those of MNIST: two zeros, the type of the elements, the number of
/// dims, the dims (big-endian), the elements.
bool is_idx(std::span<const uint8_t> start, int64_t file_bytes) {
  if (start.size() < 8 || start[0] != 0 || start[1] != 0 || start[2] < 0x08 || start[2] > 0x0e) return false;
  const size_t dims = start[3];
  if (dims < 1 || dims > 4 || start.size() < 4 + 4 * dims) return false;
  int64_t elements = 1;
  for (size_t d = 0; d < dims; ++d) {
    int64_t size = 0;
    for (size_t byte = 0; byte < 4; ++byte) size = size << 8 | start[4 + 4 * d + byte];
    if (size <= 0 || elements > file_bytes / size) return false;
    elements *= size;
  }
  return (file_bytes - 4 - static_cast<int64_t>(4 * dims)) % elements == 0;
}

}  // namespace

int64_t byte_size(TokenType type) {
  constexpr int64_t kBytes[] = {1, 2, 4, 1, 2, 8};
  return kBytes[static_cast<size_t>(type)];
}

std::string_view to_string(TokenType type) {
  constexpr std::string_view kNames[] = {"uint8", "uint16", "int32", "int8", "int16", "int64"};
  return kNames[static_cast<size_t>(type)];
}

TokenFormat parse_token_header(std::span<const uint8_t> start, int64_t file_bytes, TokenType without_header,
                               const std::string& file) {
  if (file_bytes == 0) fail(file, "is empty; expected tokens");
  if (const Kind* kind = kind_of(word(start, 0))) return parse_header(start, file_bytes, *kind, file);
  if (is_other_file_of_llm_c(start))
    fail(file, fmt::format("byte 0: {} is the magic number of another llm.c file; token files have {} or {}",
                           word(start, 0), kKinds[0].magic, kKinds[1].magic));
  if (is_idx(start, file_bytes))
    fail(file,
         "is an IDX file of images or labels; expected raw tokens; dataset.type: mnist reads folders of IDX files");
  if (is_numpy(start))
    fail(file, fmt::format("is a NumPy .npy file; expected raw tokens, as written by array.astype('{}').tofile(...)",
                           to_string(without_header)));
  if (const char* format = foreign_format(start); format != nullptr)
    fail(file, fmt::format("is {}; expected raw tokens; trainctl data tokens creates them from a text", format));
  if (without_header == TokenType::u16 && looks_like_int32(start))
    fail(file, "every second 16-bit number is 0, which indicates 32-bit tokens; set dataset.token_dtype: int32");
  const int64_t width = byte_size(without_header);
  if (file_bytes % width != 0)
    fail(file, fmt::format("{} bytes are not a whole number of {} tokens of {} bytes; download the file again, or "
                           "check dataset.token_dtype",
                           with_commas(file_bytes), to_string(without_header), width));
  return {without_header, false, file_bytes / width};
}

std::array<uint8_t, kTokenHeaderBytes> token_header(TokenType type, int64_t count) {
  const Kind& kind = kKinds[type == TokenType::u16 ? 0 : 1];
  check(kind.type == type, "llm.c has tokens of uint16 and uint32");
  check(count >= 0 && count <= std::numeric_limits<int32_t>::max(), "llm.c counts tokens in an int32");
  const int32_t words[] = {kind.magic, kind.version, static_cast<int32_t>(count)};
  std::array<uint8_t, kTokenHeaderBytes> header{};
  std::memcpy(header.data(), words, sizeof(words));
  return header;
}

void copy_tokens(std::span<const uint8_t> body, TokenType type, int64_t first, int64_t count, int32_t* out) {
  if (count == 0) return;  // Without tokens there may be no memory to copy to either.
  const uint8_t* from = body.data() + first * byte_size(type);
  switch (type) {
    case TokenType::u8:
      return convert_tokens<uint8_t>(from, count, out);
    case TokenType::u16:
      return convert_tokens<uint16_t>(from, count, out);
    case TokenType::i8:
      return convert_tokens<int8_t>(from, count, out);
    case TokenType::i16:
      return convert_tokens<int16_t>(from, count, out);
    case TokenType::i64:
      return convert_wide_tokens(from, count, out);
    case TokenType::i32:
      std::memcpy(out, from, static_cast<size_t>(count) * sizeof(int32_t));
  }
}

TokenRange range_of(std::span<const uint8_t> body, TokenType type) {
  switch (type) {
    case TokenType::u8:
      return range_as<uint8_t>(body);
    case TokenType::u16:
      return range_as<uint16_t>(body);
    case TokenType::i8:
      return range_as<int8_t>(body);
    case TokenType::i16:
      return range_as<int16_t>(body);
    case TokenType::i64:
      return range_as<int64_t>(body);
    case TokenType::i32:
      break;
  }
  return range_as<int32_t>(body);
}

std::optional<int64_t> first_outside(std::span<const uint8_t> body, TokenType type, int64_t below) {
  switch (type) {
    case TokenType::u8:
      return first_outside_as<uint8_t>(body, below);
    case TokenType::u16:
      return first_outside_as<uint16_t>(body, below);
    // A negative token is a large one.
    case TokenType::i8:
      return first_outside_as<uint8_t>(body, std::min<int64_t>(below, int64_t{1} << 7));
    case TokenType::i16:
      return first_outside_as<uint16_t>(body, std::min<int64_t>(below, int64_t{1} << 15));
    case TokenType::i64:
      return first_outside_wide(body, below);
    case TokenType::i32:
      break;
  }
  return first_outside_as<uint32_t>(body, std::min<int64_t>(below, int64_t{1} << 31));
}

}  // namespace trainctl
