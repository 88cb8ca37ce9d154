//! Numbers that look random and are the same in every run of a seed.
//!
//! What a world draws for a message depends on the seed, the link and the count of messages on that link, not
//! on how many numbers were drawn before. So a fault that is taken away (shrinking) leaves the rest of a run
//! as it was.

use std::hash::{BuildHasherDefault, Hasher};

/// Mixes three numbers into one (splitmix64's finisher, Steele, Lea and Flood 2014).
pub fn mix(seed: u64, stream: u64, count: u64) -> u64 {
    let mut z = seed
        ^ stream.wrapping_mul(0x9E37_79B9_7F4A_7C15).rotate_left(17)
        ^ count.wrapping_mul(0xD1B5_4A32_D192_ED03);
    z = z.wrapping_add(0x9E37_79B9_7F4A_7C15);
    z = (z ^ (z >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    z ^ (z >> 31)
}

/// A stream of numbers.
#[derive(Clone, Debug)]
pub struct Draw {
    seed: u64,
    count: u64,
}

impl Draw {
    /// The stream of this seed.
    pub fn new(seed: u64) -> Self {
        Self { seed, count: 0 }
    }

    /// The next number.
    pub fn number(&mut self) -> u64 {
        self.count += 1;
        mix(self.seed, 0, self.count)
    }

    /// A number below `bound`, which is not 0.
    pub fn below(&mut self, bound: u64) -> u64 {
        below(self.number(), bound)
    }

    /// True this many times in a thousand.
    pub fn permille(&mut self, times: u64) -> bool {
        self.below(1_000) < times
    }
}

/// Brings a number below `bound`, which is not 0.
pub fn below(number: u64, bound: u64) -> u64 {
    ((u128::from(number) * u128::from(bound)) >> 64) as u64
}

/// A fast hasher with fixed keys, for states that nobody chose with bad intent.
#[derive(Clone, Copy, Debug, Default)]
pub struct FastHasher(u64);

/// Builds it.
pub type Fast = BuildHasherDefault<FastHasher>;

const K: u64 = 0xF135_7AEA_2E62_A9C5;

impl Hasher for FastHasher {
    fn finish(&self) -> u64 {
        let z = (self.0 ^ (self.0 >> 32)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        z ^ (z >> 29)
    }
    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.write_u64(u64::from_le_bytes(word));
        }
    }
    fn write_u8(&mut self, i: u8) {
        self.write_u64(u64::from(i));
    }
    fn write_u16(&mut self, i: u16) {
        self.write_u64(u64::from(i));
    }
    fn write_u32(&mut self, i: u32) {
        self.write_u64(u64::from(i));
    }
    fn write_u64(&mut self, i: u64) {
        self.0 = (self.0.rotate_left(23) ^ i).wrapping_mul(K);
    }
    fn write_usize(&mut self, i: usize) {
        self.write_u64(i as u64);
    }
}
