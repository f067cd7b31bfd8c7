//! Plain tar files (ustar), written: regular files only, nothing that a reader could be led astray by.

use std::io::{self, Write};

/// Everything in a tar is in pieces of this size.
const BLOCK: usize = 512;
/// A name longer than this does not fit into the plain header.
const LONGEST_NAME: usize = 99;

/// Writes members one after the other.
#[derive(Debug)]
pub(crate) struct Archive<W> {
    out: W,
    /// Unix seconds, of every member.
    at: u64,
}

impl<W: Write> Archive<W> {
    pub(crate) const fn new(out: W, at: u64) -> Self {
        Self { out, at }
    }

    /// Adds a file.
    pub(crate) fn add(&mut self, name: &str, bytes: &[u8]) -> io::Result<()> {
        self.out.write_all(&header(name, bytes.len() as u64, self.at)?)?;
        self.out.write_all(bytes)?;
        let rest = bytes.len() % BLOCK;
        if rest > 0 {
            self.out.write_all(&vec![0; BLOCK - rest])?;
        }
        Ok(())
    }

    /// Ends the archive, and gives back what it was written to.
    pub(crate) fn finish(mut self) -> io::Result<W> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()?;
        Ok(self.out)
    }
}

fn header(name: &str, size: u64, at: u64) -> io::Result<[u8; BLOCK]> {
    let is_plain =
        !name.is_empty() && name.len() <= LONGEST_NAME && !name.starts_with('/') && !name.contains("..");
    if !is_plain {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "no name for a member of an archive"));
    }
    let mut block = [0; BLOCK];
    let mut put = |at: usize, text: &str| block[at..at + text.len()].copy_from_slice(text.as_bytes());
    put(0, name);
    put(100, "0000600\0");
    put(108, "0000000\0");
    put(116, "0000000\0");
    put(124, &format!("{size:011o}\0"));
    put(136, &format!("{at:011o}\0"));
    // The sum is taken with blanks in its own place.
    put(148, "        ");
    put(156, "0");
    put(257, "ustar\0");
    put(263, "00");
    let sum: u32 = block.iter().map(|byte| u32::from(*byte)).sum();
    block[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    Ok(block)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn tar_reads_what_was_written() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("x.tar");
        let mut archive = Archive::new(std::fs::File::create(&path).expect("a file"), 1_700_000_000);
        archive.add("a/one.txt", b"one\n").expect("added");
        archive.add("two", &[7; 1_024]).expect("added");
        archive.add("empty", b"").expect("added");
        for bad in ["", "/etc/passwd", "../x", &"x".repeat(100)] {
            assert!(archive.add(bad, b"").is_err(), "{bad:?}");
        }
        archive.finish().expect("finished");
        let run = |arguments: &[&str]| {
            let mut tar = Command::new("tar");
            tar.args(arguments).arg(&path).current_dir(folder.path()).output().expect("tar")
        };
        let listed = run(&["-tf"]);
        assert_eq!(String::from_utf8_lossy(&listed.stdout), "a/one.txt\ntwo\nempty\n", "{listed:?}");
        assert!(run(&["-xf"]).status.success());
        assert_eq!(std::fs::read(folder.path().join("a/one.txt")).expect("one"), b"one\n");
        assert_eq!(std::fs::read(folder.path().join("two")).expect("two"), [7; 1_024]);
    }
}
