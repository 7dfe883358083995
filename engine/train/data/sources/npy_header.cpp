// The header of a file of one NumPy array (numpy/lib/format.py, formats 1.0, 2.0 and 3.0).
#include "engine/train/data/sources/npy_header.h"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <optional>
#include <string_view>

#include "engine/base/error.h"
#include "engine/base/printable.h"
#include "engine/base/text.h"

namespace trainctl {
namespace {

constexpr std::string_view kMagic = "\x93NUMPY";
constexpr size_t kMostDims = 32;  ///< NumPy's own limit

struct Descr {
  std::string_view text;
  StoredElement stored;
};
constexpr Descr kDescrs[] = {
    {"|b1", StoredElement::boolean}, {"|u1", StoredElement::u8},  {"|i1", StoredElement::i8},
    {"<u2", StoredElement::u16},     {"<i2", StoredElement::i16}, {"<i4", StoredElement::i32},
    {"<u4", StoredElement::u32},     {"<i8", StoredElement::i64}, {"<f2", StoredElement::f16},
    {"<f4", StoredElement::f32},     {"<f8", StoredElement::f64},
};

/// Parses a Python literal of a dict with texts, bools and tuples of integers.
class Parser {
 public:
  Parser(std::string_view text, int64_t at, const std::string& file) : text_(text), first_(at), file_(file) {}

  NpyHeader parse() {
    expect('{');
    while (!accept('}')) {
      const int64_t at = place();
      const std::string_view key = quoted();
      expect(':');
      if (key == "descr" && !descr_)
        descr_ = descr();
      else if (key == "fortran_order" && !fortran_)
        fortran_ = boolean();
      else if (key == "shape" && !shape_)
        shape_ = tuple();
      else
        fail(at,
             fmt::format("expected descr, fortran_order and shape, each once, found '{}'", printable(shortened(key))));
      if (!accept(',')) {
        expect('}');
        break;
      }
    }
    blanks();
    if (at_ != text_.size()) fail(place(), "expected only spaces up to the end of the header");
    if (!descr_ || !fortran_ || !shape_) fail(first_, "the header needs descr, fortran_order and shape");
    if (*fortran_ && shape_->size() > 1)
      fail(first_, "the array is in Fortran order; save numpy.ascontiguousarray(array)");
    return {*descr_, *shape_, 0, 0};
  }

 private:
  [[noreturn]] void fail(int64_t at, const std::string& what) const {
    throw EnvError(fmt::format("{}: byte {}: {}", file_, at, what));
  }
  int64_t place() const { return first_ + static_cast<int64_t>(at_); }
  void blanks() {
    while (at_ < text_.size() && (text_[at_] == ' ' || text_[at_] == '\n')) ++at_;
  }
  bool accept(char c) {
    blanks();
    if (at_ >= text_.size() || text_[at_] != c) return false;
    ++at_;
    return true;
  }
  void expect(char c) {
    if (accept(c)) return;
    fail(place(), fmt::format("expected '{}', found '{}'", c, printable(text_.substr(at_, 1))));
  }

  std::string_view quoted() {
    blanks();
    const char quote = at_ < text_.size() ? text_[at_] : '\0';
    if (quote != '\'' && quote != '"') fail(place(), "expected a quoted string");
    const size_t end = text_.find(quote, at_ + 1);
    if (end == std::string_view::npos) fail(place(), "a string has no closing quote");
    const std::string_view text = text_.substr(at_ + 1, end - at_ - 1);
    at_ = end + 1;
    return text;
  }

  StoredElement descr() {
    blanks();
    const int64_t at = place();
    if (at_ < text_.size() && text_[at_] == '[')
      fail(at, "structured arrays are not supported; save each field as a separate array");
    const std::string_view name = quoted();
    for (const Descr& known : kDescrs)
      if (known.text == name) return known.stored;
    fail(at, fmt::format("elements of '{}' are not supported: expected little-endian integers or floats (not <u8); "
                         "save array.astype('float32') or 'int64'",
                         printable(shortened(name))));
  }

  bool boolean() {
    blanks();
    for (const std::string_view word : {"True", "False"})
      if (text_.substr(at_).starts_with(word)) {
        at_ += word.size();
        return word == "True";
      }
    fail(place(), "expected True or False");
  }

  Shape tuple() {
    Shape dims;
    expect('(');
    while (!accept(')')) {
      blanks();
      int64_t dim = 0;
      const auto [end, error] = std::from_chars(text_.data() + at_, text_.data() + text_.size(), dim);
      if (error != std::errc() || dim < 0) fail(place(), "expected a dim of the shape: an integer of at least 0");
      at_ = static_cast<size_t>(end - text_.data());
      dims.push_back(dim);
      if (dims.size() > kMostDims) fail(place(), fmt::format("the shape has more than {} dims", kMostDims));
      if (!accept(',')) {
        expect(')');
        break;
      }
    }
    return dims;
  }

  std::string_view text_;
  int64_t first_;  ///< byte of the file where text_ begins
  const std::string& file_;
  size_t at_ = 0;
  std::optional<StoredElement> descr_;
  std::optional<bool> fortran_;
  std::optional<Shape> shape_;
};

}  // namespace

NpyHeader parse_npy_header(std::span<const uint8_t> start, int64_t bytes, const std::string& file) {
  const std::string_view text(reinterpret_cast<const char*>(start.data()), start.size());
  const auto fail = [&](int64_t at, const std::string& what) {
    throw EnvError(fmt::format("{}: byte {}: {}", file, at, what));
  };
  if (!text.starts_with(kMagic)) fail(0, "expected \\x93NUMPY: it is not a NumPy array");
  if (text.size() < 12) fail(0, "the header is truncated; download the file again");
  const int version = start[6];
  if (version < 1 || version > 3) fail(6, fmt::format("expected a format of 1 to 3, found {}", version));
  const size_t before = version == 1 ? 10 : 12;
  size_t length = start[8] | static_cast<size_t>(start[9]) << 8;
  if (version > 1) length |= static_cast<size_t>(start[10]) << 16 | static_cast<size_t>(start[11]) << 24;
  if (length > start.size() - before)
    fail(8, fmt::format("the header has {} bytes; expected at most {}", length, start.size() - before));
  NpyHeader header = Parser(text.substr(before, length), static_cast<int64_t>(before), file).parse();
  header.data_at = static_cast<int64_t>(before + length);
  header.data_bytes = byte_size(header.stored);
  for (const int64_t dim : header.shape)
    if (__builtin_mul_overflow(header.data_bytes, dim, &header.data_bytes))
      fail(8, fmt::format("an array of {} exceeds the maximum file size", to_string(header.shape)));
  if (const int64_t there = bytes - header.data_at; there != header.data_bytes)
    fail(header.data_at, fmt::format("{} {} needs {} bytes, found {}: it is {}", to_string(header.stored),
                                     to_string(header.shape), with_commas(header.data_bytes), with_commas(there),
                                     there < header.data_bytes ? "truncated; download the file again" : "too long"));
  return header;
}

}  // namespace trainctl
