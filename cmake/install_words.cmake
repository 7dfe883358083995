# Runs while installing: manual pages and completion, which ${trainctl} itself writes.
set(prefix "$ENV{DESTDIR}${CMAKE_INSTALL_PREFIX}")

function(write_words folder file)
  file(MAKE_DIRECTORY "${prefix}/${folder}")
  execute_process(COMMAND "${trainctl}" ${ARGN} OUTPUT_FILE "${prefix}/${folder}/${file}" COMMAND_ERROR_IS_FATAL ANY)
endfunction()

execute_process(COMMAND "${trainctl}" man --output "${prefix}/share/man/man1" COMMAND_ERROR_IS_FATAL ANY)
write_words(share/bash-completion/completions trainctl completion bash)
write_words(share/fish/vendor_completions.d trainctl.fish completion fish)
# Debian's zsh searches vendor-completions below /usr, and site-functions below /usr/local.
if(CMAKE_INSTALL_PREFIX MATCHES "/usr$")
  write_words(share/zsh/vendor-completions _trainctl completion zsh)
else()
  write_words(share/zsh/site-functions _trainctl completion zsh)
endif()
