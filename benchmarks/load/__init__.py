"""Length "auto" against plain decoding by batch size, for every modality."""
