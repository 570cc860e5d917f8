#!/bin/sh
# Mount a tmpfs, a folder that lives in memory, as the documents do with `mount -t tmpfs`.
#
#     sudo data_scripts/mount_tmpfs.sh FOLDER SIZE      SIZE like 500M or 30G
#     data_scripts/mount_tmpfs.sh --check FOLDER SIZE   says what it would do, and does nothing
#
# The folder must be empty, because a mount hides the files in it.
set -eu
unset CDPATH
export LC_ALL=C

fail() {
    printf 'error: %s\n' "$1" >&2
    exit 1
}

say() { # not echo, which takes backslashes for something else
    printf '%s\n' "$1"
}

kib_of() { # 30G -> 31457280
    case $1 in
        *[Kk]) echo "${1%?}" ;;
        *[Mm]) echo $((${1%?} << 10)) ;;
        *[Gg]) echo $((${1%?} << 20)) ;;
    esac
}

readable() { # KiB -> words
    if [ "$1" -ge 10485760 ]; then echo "$(($1 >> 20)) GiB"; else echo "$(($1 >> 10)) MiB"; fi
}

available_kib() { # of memory: what the machine has, and what a container may still take
    kib=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
    for pair in memory.max:memory.current \
        memory/memory.limit_in_bytes:memory/memory.usage_in_bytes; do
        limit=$(cat "/sys/fs/cgroup/${pair%:*}" 2>/dev/null || echo max)
        used=$(cat "/sys/fs/cgroup/${pair#*:}" 2>/dev/null || echo 0)
        # No limit is written as "max" or as a number with 19 digits.
        if [ "$limit" != max ] && [ ${#limit} -lt 19 ] && [ $(((limit - used) >> 10)) -lt "$kib" ]
        then
            kib=$(((limit - used) >> 10))
        fi
    done
    echo "$kib"
}

quoted() { # for a shell
    printf "'%s'" "$(printf %s "$1" | sed "s/'/'\\\\''/g")"
}

check=no
if [ "${1-}" = --check ]; then
    check=yes
    shift
fi
[ $# -eq 2 ] || fail "usage: mount_tmpfs.sh [--check] FOLDER SIZE, as in: mount_tmpfs.sh /mnt/ram 30G"
size=$2
[ "$(uname -s)" = Linux ] || fail "tmpfs needs Linux, got $(uname -s)"
[ $check = yes ] || [ "$(id -u)" -eq 0 ] ||
    fail "mounting needs root; run it with sudo, or see what it would do with --check"

printf %s "$size" | tr '\n' '?' | grep -Eqx '[1-9][0-9]{0,8}[KkMmGg]' ||
    fail "SIZE must be a whole number followed by K, M or G, got '$size'; try 30G"

# The one true path, because mounting follows links.
case $1 in
    '') fail "FOLDER must be a path, got an empty one" ;;
    *'
'*) fail "FOLDER must be a path in one line, got one with a line break" ;;
    /*) given=$1 ;;
    *) given=./$1 ;; # so that it is no option
esac
if [ -d "$given" ]; then
    folder=$(cd "$given" && pwd -P) || fail "FOLDER must be readable, got $1"
    if mountpoint -q "$folder"; then
        fail "FOLDER must not be a mount point, got $folder; unmount it or choose another folder"
    fi
    files=$(ls -A "$folder") || fail "FOLDER must be readable, got $folder"
    [ -z "$files" ] ||
        fail "FOLDER must be empty, got files in $folder, which the mount would hide; choose another"
elif [ -e "$given" ] || [ -L "$given" ]; then
    fail "FOLDER must be a folder, got $1, which is something else"
else
    parent=$(cd "$(dirname "$given")" 2>/dev/null && pwd -P) ||
        fail "FOLDER must lie in a folder that exists, got $1; make that folder first"
    folder=${parent%/}/$(basename "$given")
fi

kib=$(kib_of "$size")
free_kib=$(available_kib)
[ "$kib" -le "$free_kib" ] ||
    fail "SIZE must be at most the $(readable "$free_kib") of memory available, got $size; \
choose a smaller one or end other programs"

options=size=$size,mode=0755,nosuid,nodev
if printf '%s:%s' "${SUDO_UID-}" "${SUDO_GID-}" | grep -Eqx '[0-9]+:[0-9]+'; then
    options=$options,uid=$SUDO_UID,gid=$SUDO_GID
fi
if [ $check = yes ]; then
    [ -d "$folder" ] || say "would make:  mkdir $(quoted "$folder")"
    say "would mount: mount -t tmpfs -o $options tmpfs $(quoted "$folder")"
else
    made=no
    if [ ! -d "$folder" ]; then
        mkdir "$folder" || fail "FOLDER must be a folder that can be made, got $folder"
        made=yes
    fi
    if ! reason=$(mount -t tmpfs -o "$options" tmpfs "$folder" 2>&1); then
        [ $made = no ] || rmdir "$folder"
        fail "FOLDER must be one that may be mounted on, got '$(printf %s "$reason" | head -n 1)'; in a \
container start it with --privileged, or mount nothing: storage=tmpfs then takes /dev/shm"
    fi
    say "mounted: $folder"
fi

blanks='s/\\/\\134/g; s/ /\\040/g; s/	/\\011/g'
cat <<TEXT
size:    $size of $(readable "$free_kib") available is the most it can hold, not reserved: files
         take memory as they come, and may be swapped out where there is swap
reboot:  everything in it is lost at a reboot and when it is unmounted; keep the originals
fstab:   to have it back, empty, after a reboot, add this line to /etc/fstab:
tmpfs $(printf %s "$folder" | sed "$blanks") tmpfs $options 0 0
labkit:  so that storage=tmpfs uses it, write below [media] in labkit.toml:
tmpfs = "$(printf %s "$folder" | sed 's/\\/\\\\/g; s/"/\\"/g')"
undo:    umount $(quoted "$folder")
TEXT
