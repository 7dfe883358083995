// A page:  NAME  SYNOPSIS  [prose from the footer of --help]  COMMANDS  ARGUMENTS  OPTIONS  EXAMPLES  SEE ALSO
#include "cli/man_page.h"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <array>
#include <sstream>
#include <vector>

#include "cli/command_words.h"
#include "engine/base/error.h"
#include "engine/base/printable.h"

namespace trainctl {
namespace {

constexpr std::string_view kExamples = "Examples:\n";

/// Writes multi-byte characters as \[u2026], since roff reads bytes.
std::string as_roff(std::string_view character) {
  constexpr std::array<unsigned char, 5> kPayload = {0, 0x7f, 0x1f, 0x0f, 0x07};
  unsigned code = static_cast<unsigned char>(character[0]) & kPayload[character.size()];
  for (const char byte : character.substr(1)) code = code << 6 | (static_cast<unsigned char>(byte) & 0x3f);
  return fmt::format("\\[u{:04X}]", code);
}

/// Escapes UTF-8 text so that roff finds no commands in it. '-' becomes "\-": roff may print a plain one as a hyphen,
/// which cannot be pasted into a shell.
std::string escaped(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    const std::string_view character = text.substr(i, utf8_length(text.substr(i)));
    check(!character.empty(), "help texts are UTF-8");
    const bool begins_line = i == 0 || text[i - 1] == '\n';
    if (begins_line && (character == "." || character == "'")) out += "\\&";
    if (character == "\\")
      out += "\\e";
    else if (character == "-")
      out += "\\-";
    else
      out += character.size() == 1 ? std::string(character) : as_roff(character);
    i += character.size();
  }
  return out;
}

std::string bold(const std::string& text) { return "\\fB" + escaped(text) + "\\fR"; }
std::string italic(const std::string& text) { return "\\fI" + escaped(text) + "\\fR"; }

std::string page_name(const CLI::App& command) {
  std::string name = full_name(command);
  std::replace(name.begin(), name.end(), ' ', '-');
  return name;
}

std::vector<const CLI::Option*> options_of(const CLI::App& command, bool positional) {
  std::vector<const CLI::Option*> found;
  for (const CLI::Option* option : command.get_options())
    if (option->get_positional() == positional && !option->get_group().empty()) found.push_back(option);
  return found;
}

bool is_list(const CLI::Option& option) { return option.get_items_expected_max() > 1; }

std::string synopsis(const CLI::App& command) {
  std::string line = bold(full_name(command));
  if (!options_of(command, false).empty()) line += " [" + italic("OPTION") + "]...";
  if (!commands_of(command).empty()) return line + " " + italic("COMMAND") + " ...";
  for (const CLI::Option* argument : options_of(command, true)) {
    const std::string name = italic(argument->get_name(true)) + (is_list(*argument) ? "..." : "");
    line += argument->get_required() ? " " + name : " [" + name + "]";
  }
  return line;
}

/// "-o, --output FILE", the names in bold.
std::string option_head(const CLI::Option& option) {
  std::string head;
  const auto add = [&head](const std::string& name) { head += (head.empty() ? "" : ", ") + bold(name); };
  for (const std::string& name : option.get_snames()) add("-" + name);
  for (const std::string& name : option.get_lnames()) add("--" + name);
  if (option.get_items_expected_min() > 0) head += " " + italic(option.get_type_name());
  return head;
}

std::string with_default(const CLI::Option& option) {
  const std::string text = escaped(option.get_description());
  const std::string value = option.get_default_str();
  return value.empty() ? text : text + " [default: " + escaped(value) + "]";
}

/// Paragraphs are filled. One with indented lines is a table or code, and is not changed.
std::string prose(const std::string& text) {
  std::string out;
  std::istringstream lines(text + "\n\n");
  std::string paragraph;
  for (std::string line; std::getline(lines, line);) {
    if (!line.empty()) {
      paragraph += line + "\n";
      continue;
    }
    const bool as_it_is = paragraph.starts_with(' ') || paragraph.find("\n ") != std::string::npos;
    if (!paragraph.empty()) out += ".PP\n" + (as_it_is ? ".nf\n" + escaped(paragraph) + ".fi\n" : escaped(paragraph));
    paragraph.clear();
  }
  return out;
}

/// The examples of a footer are its lines from "Examples:" to the next empty one.
struct Footer {
  std::string prose, examples;
};

Footer split_footer(const std::string& text) {
  const size_t begin = text.find(kExamples);
  if (begin == std::string::npos) return {text, ""};
  const size_t first = begin + kExamples.size();
  const size_t end = std::min(text.find("\n\n", first), text.size());
  return {text.substr(0, begin) + text.substr(end), text.substr(first, end - first)};
}

std::string commands_section(const CLI::App& command) {
  std::string out;
  for (const CLI::App* each : commands_of(command))
    out += ".TP\n" + bold(each->get_name()) + "\n" + escaped(each->get_description()) + ". See " +
           bold(page_name(*each)) + "(1).\n";
  return out.empty() ? "" : ".SH COMMANDS\n" + out;
}

std::string arguments_section(const CLI::App& command) {
  std::string out;
  for (const CLI::Option* each : options_of(command, true))
    out += ".TP\n" + italic(each->get_name(true)) + "\n" + with_default(*each) + "\n";
  return out.empty() ? "" : ".SH ARGUMENTS\n" + out;
}

std::string options_section(const CLI::App& command) {
  std::string out;
  for (const CLI::Option* each : options_of(command, false))
    out += ".TP\n" + option_head(*each) + "\n" + with_default(*each) + "\n";
  return out.empty() ? "" : ".SH OPTIONS\n" + out;
}

std::string see_also(const CLI::App& command) {
  std::vector<const CLI::App*> others;
  if (const CLI::App* parent = command.get_parent()) {
    others = commands_of(*parent);
    others.insert(others.begin(), parent);
  }
  std::string out;
  for (const CLI::App* each : others)
    if (each != &command) out += (out.empty() ? "" : ", ") + bold(page_name(*each)) + "(1)";
  return out.empty() ? "" : ".SH SEE ALSO\n" + out + "\n";
}

}  // namespace

std::string man_page_file(const CLI::App& command) { return page_name(command) + ".1"; }

std::string man_page(const CLI::App& command, const std::string& version) {
  const Footer footer = split_footer(command.get_footer());
  std::string what = command.get_description();
  if (what.ends_with('.')) what.pop_back();
  std::string page = ".TH \"" + escaped(page_name(command)) + "\" 1 \"\" \"" + escaped(version) + "\" \"trainctl\"\n";
  page += ".SH NAME\n" + escaped(page_name(command)) + " \\- " + escaped(what) + "\n";
  page += ".SH SYNOPSIS\n" + synopsis(command) + "\n";
  if (const std::string text = prose(footer.prose); !text.empty()) page += ".SH DESCRIPTION\n" + text;
  page += commands_section(command) + arguments_section(command) + options_section(command);
  if (!footer.examples.empty()) page += ".SH EXAMPLES\n.nf\n" + escaped(footer.examples) + "\n.fi\n";
  return page + see_also(command);
}

}  // namespace trainctl
