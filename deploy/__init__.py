"""What puts the product where it runs."""
