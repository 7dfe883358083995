// The header of a safetensors file: parsed with all the published rules, and made.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>
#include <set>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/round_up.h"
#include "engine/base/text.h"
#include "engine/base/text_output.h"
#include "engine/train/files/safetensors.h"

namespace trainctl {
namespace {

static_assert(std::endian::native == std::endian::little, "length and data are little-endian");

constexpr const char* kMetadata = "__metadata__";
constexpr int64_t kHeaderLengthBytes = 8;
constexpr int64_t kDataAlignment = 8;
constexpr int kMostDepth = 3;  ///< header, tensor, its shape

struct TypeRow {
  StoredType type;
  std::string_view name;
  int bits;
};

constexpr TypeRow kStoredTypes[] = {
    {StoredType::boolean, "BOOL", 8},
    {StoredType::f4, "F4", 4},
    {StoredType::f6_e2m3, "F6_E2M3", 6},
    {StoredType::f6_e3m2, "F6_E3M2", 6},
    {StoredType::u8, "U8", 8},
    {StoredType::i8, "I8", 8},
    {StoredType::f8_e5m2, "F8_E5M2", 8},
    {StoredType::f8_e4m3, "F8_E4M3", 8},
    {StoredType::f8_e8m0, "F8_E8M0", 8},
    {StoredType::f8_e4m3fnuz, "F8_E4M3FNUZ", 8},
    {StoredType::f8_e5m2fnuz, "F8_E5M2FNUZ", 8},
    {StoredType::i16, "I16", 16},
    {StoredType::u16, "U16", 16},
    {StoredType::f16, "F16", 16},
    {StoredType::bf16, "BF16", 16},
    {StoredType::i32, "I32", 32},
    {StoredType::u32, "U32", 32},
    {StoredType::f32, "F32", 32},
    {StoredType::c64, "C64", 64},
    {StoredType::f64, "F64", 64},
    {StoredType::i64, "I64", 64},
    {StoredType::u64, "U64", 64},
};

const TypeRow& row_of(StoredType type) {
  const TypeRow& row = kStoredTypes[static_cast<size_t>(type)];
  check(row.type == type, "the rows of kTypes are in the order of StoredType");
  return row;
}

std::string quoted(const std::string& name) { return "'" + printable(shortened(name)) + "'"; }

class HeaderParser {
 public:
  HeaderParser(std::span<const uint8_t> start, int64_t file_bytes, const std::string& file)
      : start_(start), file_bytes_(file_bytes), file_(file) {}

  SafetensorsHeader parse() {
    const int64_t length = read_length();
    header_.data_at = kHeaderLengthBytes + length;
    const std::string_view text(reinterpret_cast<const char*>(start_.data()) + kHeaderLengthBytes,
                                static_cast<size_t>(length));
    const nlohmann::json json = parse_json(text);
    for (const auto& [name, value] : json.items()) {
      if (name == kMetadata)
        read_metadata(value);
      else
        read_entry(name, value);
    }
    check_offsets();
    return std::move(header_);
  }

 private:
  [[noreturn]] void fail(const std::string& what) const { throw EnvError(file_ + ": " + what); }
  [[noreturn]] void fail_entry(const std::string& name, const std::string& what) const {
    fail("tensor " + quoted(name) + ": " + what);
  }

  int64_t read_length() const {
    if (file_bytes_ < kHeaderLengthBytes || start_.size() < kHeaderLengthBytes)
      fail(fmt::format("has {} bytes, but a safetensors file begins with the length of its header in 8 bytes",
                       file_bytes_));
    uint64_t length = 0;
    std::memcpy(&length, start_.data(), sizeof length);
    if (length > static_cast<uint64_t>(kMostHeaderBytes))
      fail(fmt::format("byte 0: expected the length of a header, at most {}, found {}; it is not a safetensors file",
                       with_commas(kMostHeaderBytes), length));
    const auto bytes = static_cast<int64_t>(length);
    if (bytes > file_bytes_ - kHeaderLengthBytes)
      fail(fmt::format("byte 0: the header has {} bytes, {} with its length, but the file has only {}",
                       with_commas(bytes), with_commas(bytes + kHeaderLengthBytes), with_commas(file_bytes_)));
    check(static_cast<int64_t>(start_.size()) >= kHeaderLengthBytes + bytes, "the caller read the whole header");
    return bytes;
  }

  nlohmann::json parse_json(std::string_view text) const {
    if (!text.starts_with('{')) fail("byte 8: the header must begin with '{'");
    const std::string_view object = text.substr(0, text.find_last_not_of(' ') + 1);
    if (!object.ends_with('}'))
      fail(fmt::format("byte {}: only blanks may follow the header's last '}}'",
                       kHeaderLengthBytes + static_cast<int64_t>(object.size()) - 1));
    std::vector<std::set<std::string>> names;  // of the objects that are open
    const auto refuse_twice = [&](int depth, nlohmann::json::parse_event_t event, nlohmann::json& value) {
      using Event = nlohmann::json::parse_event_t;
      if (depth > kMostDepth) fail("the header is nested too deeply");
      if (event == Event::object_start) names.emplace_back();
      if (event == Event::object_end) names.pop_back();
      if (event == Event::key && !names.back().insert(value.get_ref<const std::string&>()).second)
        fail("the header contains the name " + quoted(value.get_ref<const std::string&>()) + " twice");
      return true;
    };
    try {
      return nlohmann::json::parse(object, refuse_twice);
    } catch (const nlohmann::json::parse_error& error) {
      const std::string what = error.what();
      fail(fmt::format("byte {}: the header is not valid JSON: {}",
                       kHeaderLengthBytes + static_cast<int64_t>(error.byte),
                       printable(what.substr(what.find("] ") + 2))));
    } catch (const nlohmann::json::out_of_range& error) {  // 1e999
      const std::string what = error.what();
      fail("the header is not valid JSON: " + printable(what.substr(what.find("] ") + 2)));
    }
  }

  void read_metadata(const nlohmann::json& value) {
    if (value.is_null()) return;  // as the safetensors library reads it
    if (!value.is_object())
      fail(fmt::format("{}: expected an object of strings, found {}", kMetadata, value.type_name()));
    for (const auto& [key, text] : value.items()) {
      if (!text.is_string())
        fail(fmt::format("{}: {}: expected a string, found {}", kMetadata, quoted(key), text.type_name()));
      header_.metadata.emplace(key, text.get<std::string>());
    }
  }

  const nlohmann::json& field(const std::string& name, const nlohmann::json& value, const char* key) const {
    const auto found = value.find(key);
    if (found == value.end()) fail_entry(name, fmt::format("has no field '{}'", key));
    return *found;
  }

  int64_t count(const std::string& name, const nlohmann::json& value, const char* key) const {
    constexpr auto kMost = static_cast<uint64_t>(std::numeric_limits<int64_t>::max());
    if (!value.is_number_unsigned() || value.get<uint64_t>() > kMost)
      fail_entry(name, fmt::format(
                           "{}: expected an integer of at least 0, found {}", key,
                           printable(shortened(value.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace)))));
    return value.get<int64_t>();
  }

  std::vector<int64_t> counts(const std::string& name, const nlohmann::json& value, const char* key) const {
    const nlohmann::json& list = field(name, value, key);
    if (!list.is_array()) fail_entry(name, fmt::format("{}: expected a list, found {}", key, list.type_name()));
    std::vector<int64_t> numbers;
    for (const nlohmann::json& item : list) numbers.push_back(count(name, item, key));
    return numbers;
  }

  void read_entry(const std::string& name, const nlohmann::json& value) {
    if (!value.is_object()) fail_entry(name, fmt::format("expected an object, found {}", value.type_name()));
    SafetensorsEntry entry{
        .name = name, .type = type(name, field(name, value, "dtype")), .shape = counts(name, value, "shape")};
    const std::vector<int64_t> offsets = counts(name, value, "data_offsets");
    if (offsets.size() != 2)
      fail_entry(name, fmt::format("data_offsets: expected 2 numbers, found {}", offsets.size()));
    entry.begin = offsets[0];
    entry.end = offsets[1];
    if (entry.begin > entry.end)
      fail_entry(name, fmt::format("data_offsets: begins at {}, after its end at {}", entry.begin, entry.end));
    check_size(entry);
    header_.entries.push_back(std::move(entry));
  }

  StoredType type(const std::string& name, const nlohmann::json& value) const {
    const std::string text = value.is_string() ? value.get<std::string>() : value.type_name();
    for (const TypeRow& row : kStoredTypes)
      if (value.is_string() && row.name == text) return row.type;
    fail_entry(name, "dtype: expected one of the format, such as F32, found " + quoted(text));
  }

  void check_size(const SafetensorsEntry& entry) const {
    int64_t bits = bits_of(entry.type);
    for (const int64_t size : entry.shape)
      if (__builtin_mul_overflow(bits, size, &bits))
        fail_entry(entry.name, "shape: " + to_string(entry.shape) + " has more elements than a file can store");
    if (bits % 8 != 0)
      fail_entry(entry.name, fmt::format("{} elements of {} bits are not a whole number of bytes",
                                         bits / bits_of(entry.type), bits_of(entry.type)));
    if (entry.bytes() != bits / 8)
      fail_entry(entry.name,
                 fmt::format("{} of {} has {} bytes, but data_offsets [{}, {}] are {}", to_string(entry.type),
                             to_string(entry.shape), bits / 8, entry.begin, entry.end, entry.bytes()));
  }

  void check_offsets() {
    std::sort(header_.entries.begin(), header_.entries.end(), [](const auto& a, const auto& b) {
      return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
    });
    int64_t at = 0;
    for (const SafetensorsEntry& entry : header_.entries) {
      if (entry.begin != at)
        fail_entry(entry.name, fmt::format("data_offsets: expected to begin at {}, where the previous tensor ends, "
                                           "found {}: {}",
                                           at, entry.begin, entry.begin < at ? "an overlap" : "a gap"));
      at = entry.end;
    }
    const int64_t there = file_bytes_ - header_.data_at;
    if (at != there)
      fail(fmt::format("the tensors have {} bytes of data, but the file has {} after its header: it is {}",
                       with_commas(at), with_commas(there), there < at ? "truncated" : "too long"));
  }

  std::span<const uint8_t> start_;
  int64_t file_bytes_;
  const std::string& file_;
  SafetensorsHeader header_;
};

bool is_plain(std::string_view name) {
  return std::all_of(name.begin(), name.end(),
                     [](unsigned char c) { return c >= 0x20 && c < 0x7f && c != '"' && c != '\\'; });
}

/// The name as a JSON string.
std::string json_text(const std::string& name) {
  return is_plain(name) ? '"' + name + '"' : nlohmann::json(name).dump();
}

/// Appends what follows a tensor's name. `out` is a TextOutput or a TextLength.
template <class Output>
void write_value(Output& out, int64_t begin, int64_t end, StoredType type, const Shape& shape) {
  out.text(R"(:{"data_offsets":[)");
  out.number(begin);
  out.text(",");
  out.number(end);
  out.text(R"(],"dtype":")");
  out.text(to_string(type));
  out.text(R"(","shape":[)");
  for (size_t d = 0; d < shape.size(); ++d) {
    if (d > 0) out.text(",");
    out.number(shape[d]);
  }
  out.text("]}");
}

int64_t data_bytes(StoredType type, const Shape& shape) {
  const int64_t bits = num_elements(shape) * bits_of(type);
  check(bits % 8 == 0, "a tensor has a whole number of bytes");
  return bits / 8;
}

/// Bytes of the length and the header, if the JSON object has `text_bytes`.
int64_t head_bytes(int64_t text_bytes) {
  const int64_t bytes = round_up(kHeaderLengthBytes + text_bytes, kDataAlignment);
  check(bytes - kHeaderLengthBytes <= kMostHeaderBytes, "a header has at most 100,000,000 bytes");
  return bytes;
}

/// The order of entries in a file.
template <class Entry>
void put_wide_types_first(std::vector<Entry>& entries) {
  const auto is_wider = [](const Entry& a, const Entry& b) {
    return a.type != b.type && bits_of(a.type) > bits_of(b.type);
  };
  if (!std::is_sorted(entries.begin(), entries.end(), is_wider))
    std::stable_sort(entries.begin(), entries.end(), is_wider);
}

}  // namespace

std::string_view to_string(StoredType type) { return row_of(type).name; }
int bits_of(StoredType type) { return row_of(type).bits; }

StoredType stored_type(DType type) {
  return type == DType::f32    ? StoredType::f32
         : type == DType::bf16 ? StoredType::bf16
         : type == DType::f16  ? StoredType::f16
                               : StoredType::i32;
}

SafetensorsHeader parse_safetensors_header(std::span<const uint8_t> start, int64_t file_bytes,
                                           const std::string& file) {
  return HeaderParser(start, file_bytes, file).parse();
}

int64_t header_name_bytes(std::string_view name) {
  return static_cast<int64_t>(is_plain(name) ? name.size() + 2 : nlohmann::json(name).dump().size());
}

SafetensorsHeader lay_out(std::vector<SafetensorsEntry> entries, std::map<std::string, std::string> metadata) {
  put_wide_types_first(entries);
  std::set<std::string_view> names;
  int64_t at = 0;
  for (SafetensorsEntry& entry : entries) {
    check(entry.name != kMetadata && names.insert(entry.name).second, "each tensor of a file has a name of its own");
    entry.begin = at;
    at += data_bytes(entry.type, entry.shape);
    entry.end = at;
  }
  SafetensorsHeader header{.entries = std::move(entries), .metadata = std::move(metadata)};
  header.data_at = static_cast<int64_t>(safetensors_head(header).size());
  return header;
}

std::string safetensors_head(const SafetensorsHeader& header) {
  std::string text;
  const auto add_name = [&](const std::string& name) { text += (text.empty() ? "{" : ",") + json_text(name); };
  if (!header.metadata.empty()) {
    add_name(kMetadata);
    text += ":" + nlohmann::json(header.metadata).dump();
  }
  for (const SafetensorsEntry& entry : header.entries) {
    add_name(entry.name);
    TextOutput out{text};
    write_value(out, entry.begin, entry.end, entry.type, entry.shape);
  }
  text += text.empty() ? "{}" : "}";
  text.resize(static_cast<size_t>(head_bytes(static_cast<int64_t>(text.size())) - kHeaderLengthBytes), ' ');
  const uint64_t length = text.size();
  std::array<char, kHeaderLengthBytes> bytes{};
  std::memcpy(bytes.data(), &length, sizeof length);
  return std::string(bytes.data(), bytes.size()) + text;
}

int64_t safetensors_bytes(std::vector<SafetensorsEntrySize> entries) {
  put_wide_types_first(entries);
  TextLength text{entries.empty() ? 2 : 1 + static_cast<int64_t>(entries.size())};  // braces and commas
  int64_t at = 0;
  for (const SafetensorsEntrySize& entry : entries) {
    const int64_t end = at + data_bytes(entry.type, entry.shape);
    text.bytes += entry.name_bytes;
    write_value(text, at, end, entry.type, entry.shape);
    at = end;
  }
  return head_bytes(text.bytes) + at;
}

}  // namespace trainctl
