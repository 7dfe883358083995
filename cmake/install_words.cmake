# Runs while installing: manual pages and completion, which ${trainctl} itself writes; what Debian's policy wants of a package.
set(prefix "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")

function(write_words folder file)
  file(MAKE_DIRECTORY "${prefix}/${folder}")
  execute_process(COMMAND "${trainctl}" ${ARGN} OUTPUT_FILE "${prefix}/${folder}/${file}" COMMAND_ERROR_IS_FATAL ANY)
endfunction()

execute_process(COMMAND "${trainctl}" man --output "${prefix}/share/man/man1" COMMAND_ERROR_IS_FATAL ANY)
# As Debian wants its pages: compressed, without the time of it.
file(GLOB pages "${prefix}/share/man/man1/*.1")
execute_process(COMMAND gzip --best --no-name --force ${pages} COMMAND_ERROR_IS_FATAL ANY)
write_words(share/bash-completion/completions trainctl completion bash)
write_words(share/fish/vendor_completions.d trainctl.fish completion fish)
# Debian's zsh searches vendor-completions below /usr, and site-functions below /usr/local.
if(CMAKE_INSTALL_PREFIX MATCHES "/usr$")
  write_words(share/zsh/vendor-completions _trainctl completion zsh)
else()
  write_words(share/zsh/site-functions _trainctl completion zsh)
endif()

if(CMAKE_INSTALL_PREFIX MATCHES "/usr$")
  set(about "${prefix}/share/doc/trainctl")
  file(WRITE "${about}/copyright"
       "Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: trainctl\n\n"
       "Files: *\nCopyright: 2026 the maintainers of trainctl\nLicense: Apache-2.0\n"
       " On Debian systems the text of this licence is in\n /usr/share/common-licenses/Apache-2.0.\n"
       "Comment: The libraries in /usr/lib/trainctl have licences of their own, which are\n in /usr/share/doc/trainctl/licenses.\n")
  file(WRITE "${about}/changelog" "trainctl (${version}) unstable; urgency=medium\n\n  * See the project's history.\n\n -- ${contact}  Thu, 01 Jan 1970 00:00:00 +0000\n")
  execute_process(COMMAND gzip --best --no-name --force "${about}/changelog" COMMAND_ERROR_IS_FATAL ANY)
  # The package runs on any system whose C library is new enough, so it brings its libraries along, in a folder of its own.
  file(WRITE "${prefix}/share/lintian/overrides/trainctl"
       "trainctl: embedded-library *\ntrainctl: custom-library-search-path *\ntrainctl: extra-license-file *\n")
endif()
